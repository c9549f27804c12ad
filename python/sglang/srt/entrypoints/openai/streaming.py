"""OpenAI's stream events as bytes. The constant part of a chunk is built once a request, not once a token."""

from collections.abc import AsyncGenerator, Callable

import orjson

from sglang.srt.entrypoints.generation import Chunk, Generation
from sglang.srt.entrypoints.http_tools import DONE
from sglang.srt.entrypoints.openai.protocol import StreamOptions, Usage

ChoiceParts = Callable[[Chunk, bool], list[bytes]]
"""(chunk, whether it is its output's first) -> JSON of the choices to send, one event each."""


class StreamWriter:
    """Frames choices as server-sent events of one request."""

    def __init__(
        self,
        *,
        answer_id: str,
        kind: str,
        created: int,
        model: str,
        options: StreamOptions | None,
        usage: Callable[[], Usage],
    ) -> None:
        """`kind` is OpenAI's `object`; `usage` counts what was generated so far."""
        head = orjson.dumps({"id": answer_id, "object": kind, "created": created, "model": model})
        self._head = b"data: " + head[:-1] + b',"choices":['
        self._include = bool(options and options.include_usage)
        self._continuous = bool(options and options.continuous_usage_stats)
        self._usage = usage

    async def events(
        self, generation: Generation, first: list[Chunk], choices: ChoiceParts
    ) -> AsyncGenerator[bytes, None]:
        """Every event of the stream, those of one turn of the engine together; then usage if asked for, then [DONE]."""
        begun: set[int] = set()
        chunks = first
        while chunks:
            tail = self._tail()
            parts: list[bytes] = []
            for chunk in chunks:
                for choice in choices(chunk, chunk.index not in begun):
                    parts += (self._head, choice, tail)
                begun.add(chunk.index)
            if parts:
                yield b"".join(parts)
            chunks = await generation.take()
        if self._include:
            yield self._head + b'],"usage":' + self._usage_json() + b"}\n\n"
        yield DONE

    def _tail(self) -> bytes:
        if self._continuous:
            return b'],"usage":' + self._usage_json() + b"}\n\n"
        return b'],"usage":null}\n\n' if self._include else b"]}\n\n"

    def _usage_json(self) -> bytes:
        return self._usage().model_dump_json(exclude_none=True).encode()


def reason_json(chunk: Chunk) -> bytes:
    """`"finish_reason":...}`: how a choice ends."""
    if chunk.finish is None:
        return b',"finish_reason":null}'
    matched = b"" if chunk.finish.matched is None else b',"matched_stop":' + orjson.dumps(chunk.finish.matched)
    return b',"finish_reason":' + orjson.dumps(chunk.finish.reason) + matched + b"}"
