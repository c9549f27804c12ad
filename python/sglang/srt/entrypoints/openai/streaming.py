"""What answers of /v1/completions and /v1/chat/completions share: their head, their usage, and their stream as bytes.

The constant part of a chunk is built once a request, not once a token.
"""

import time
import uuid
from collections.abc import AsyncGenerator, Callable

import orjson
from pydantic import BaseModel

from sglang.srt.entrypoints.front import Front
from sglang.srt.entrypoints.generation import Chunk, Generation
from sglang.srt.entrypoints.http_tools import DONE
from sglang.srt.entrypoints.openai.protocol import OpenAIFields, Usage
from sglang.srt.entrypoints.openai.usage import usage_of

ChoiceParts = Callable[[Chunk, bool], list[bytes]]
"""(chunk, whether it is its output's first) -> JSON of the choices to send, one event each."""


class AnswerFrame:
    """Frames the choices of one request."""

    def __init__(self, body: OpenAIFields, front: Front, generation: Generation, *, prefix: str, kind: str) -> None:
        """`prefix` of the answer's id; `kind` is OpenAI's `object` of a stream's chunk."""
        self._generation = generation
        self._head = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": front.config.served_model_name,
        }
        self._stream_head = b"data: " + orjson.dumps({**self._head, "object": kind})[:-1] + b',"choices":['
        options = body.stream_options
        self._include = bool(options and options.include_usage)
        self._continuous = bool(options and options.continuous_usage_stats)
        self._copies = body.copies
        self._report_cached = front.config.enable_cache_report

    async def whole(self, answer: Callable[..., BaseModel], choice: Callable[[Chunk], BaseModel]) -> bytes:
        """`answer`, once all outputs ended."""
        choices = [choice(chunk) for chunk in await self._generation.collect()]
        return answer(**self._head, choices=choices, usage=self._usage()).model_dump_json().encode()

    async def events(self, first: list[Chunk], choices: ChoiceParts) -> AsyncGenerator[bytes, None]:
        """Every event of the stream, those of one turn of the engine together; then usage if asked for, then [DONE]."""
        begun: set[int] = set()
        chunks = first
        while chunks:
            tail = self._tail()
            parts: list[bytes] = []
            for chunk in chunks:
                for choice in choices(chunk, chunk.index not in begun):
                    parts += (self._stream_head, choice, tail)
                begun.add(chunk.index)
            if parts:
                yield b"".join(parts)
            chunks = await self._generation.take()
        if self._include:
            yield self._stream_head + b'],"usage":' + self._usage_json() + b"}\n\n"
        yield DONE

    def _tail(self) -> bytes:
        if self._continuous:
            return b'],"usage":' + self._usage_json() + b"}\n\n"
        return b'],"usage":null}\n\n' if self._include else b"]}\n\n"

    def _usage(self) -> Usage:
        return usage_of(self._generation.outputs, self._copies, report_cached=self._report_cached)

    def _usage_json(self) -> bytes:
        return self._usage().model_dump_json(exclude_none=True).encode()


def reason_json(chunk: Chunk) -> bytes:
    """`"finish_reason":...}`: how a choice ends."""
    if chunk.finish is None:
        return b',"finish_reason":null}'
    matched = b"" if chunk.finish.matched is None else b',"matched_stop":' + orjson.dumps(chunk.finish.matched)
    return b',"finish_reason":' + orjson.dumps(chunk.finish.reason) + matched + b"}"
