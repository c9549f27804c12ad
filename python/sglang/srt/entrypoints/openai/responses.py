"""/v1/responses for text: OpenAI's newer dialect over the same conversation as chat. Nothing is stored."""

import time
import uuid
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import orjson
from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from sglang.srt.entrypoints.front import Front
from sglang.srt.entrypoints.generation import Chunk, Generation
from sglang.srt.entrypoints.http_tools import read_body, respond
from sglang.srt.entrypoints.openai.chat import chat_wanted
from sglang.srt.entrypoints.openai.protocol import MAX_MESSAGES, ChatBody, ChatMessage, ContentPart
from sglang.srt.entrypoints.openapi import DirectRoute, body_schema
from sglang.srt.entrypoints.sampling_fields import Body, refuse
from sglang.srt.errors import RequestError

_TEXT_PARTS = ("input_text", "output_text", "text")


class InputPart(Body):
    """A piece of an input message."""

    type: str
    text: str | None = None


class InputMessage(Body):
    """One message of the conversation so far."""

    type: str = "message"
    role: str = Field(default="user", min_length=1, max_length=64)
    content: str | list[InputPart] | None = None


class TextFormat(Body):
    """`text.format`."""

    type: str = "text"


class TextOptions(Body):
    """`text`."""

    format: TextFormat | None = None


class ResponsesBody(Body):
    """/v1/responses."""

    model: str | None = None
    input: str | Annotated[list[InputMessage], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=1000)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stream: bool | None = None
    metadata: dict[str, str] | None = None
    text: TextOptions | None = None
    tools: Any = None
    previous_response_id: Any = None
    conversation: Any = None
    background: bool | None = None

    def check(self) -> None:
        """Raises RequestError for what is not supported."""
        refuse(
            (
                ("tools", self.tools, ([],)),
                ("previous_response_id", self.previous_response_id, ()),
                ("conversation", self.conversation, ()),
                ("background", self.background, (False,)),
                ("text.format", self.text.format.type if self.text and self.text.format else None, ("text",)),
            )
        )

    def chat(self) -> ChatBody:
        """The same request as a chat."""
        messages = [ChatMessage(role="system", content=self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            messages.append(ChatMessage(role="user", content=self.input))
        else:
            messages += [_message(item, position) for position, item in enumerate(self.input)]
        return ChatBody(
            messages=messages,
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
        )


def _message(item: InputMessage, position: int) -> ChatMessage:
    if item.type != "message":
        raise RequestError(f"input.{position}: items of type {item.type!r} are not supported", param="input")
    if item.content is None:
        raise RequestError(f"input.{position}.content: required", param="input")
    if not isinstance(item.content, list):
        return ChatMessage(role=item.role, content=item.content)
    for part in item.content:
        if part.type not in _TEXT_PARTS or part.text is None:
            raise RequestError(f"input.{position}: content of type {part.type!r} is not supported", param="input")
    parts = [ContentPart(type="text", text=part.text) for part in item.content]
    return ChatMessage(role=item.role, content=parts)


def responses_routes(front: Front) -> APIRouter:
    """The route over `front`."""
    router = APIRouter(route_class=DirectRoute)

    @router.post("/v1/responses", openapi_extra=body_schema(ResponsesBody))
    async def responses(request: Request) -> Response:
        body = await read_body(request, ResponsesBody)
        front.check_model(body.model)
        body.check()
        generation = front.generate([await chat_wanted(body.chat(), front)], stream=bool(body.stream))
        return await respond(request, generation, _Reply(body, front, generation), stream=bool(body.stream))

    return router


class _Reply:
    """Shows a generation as a response object, or as its events."""

    def __init__(self, body: ResponsesBody, front: Front, generation: Generation) -> None:
        self._body = body
        self._generation = generation
        self._id = f"resp_{uuid.uuid4().hex}"
        self._item_id = f"msg_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = front.config.served_model_name
        self._number = 0

    async def whole(self) -> bytes:
        chunk = (await self._generation.collect())[0]
        return orjson.dumps(self._response(chunk))

    async def events(self, first: list[Chunk]) -> AsyncGenerator[bytes, None]:
        so_far = Chunk(0)
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        empty = {**self._item(so_far), "content": []}
        head = self._event("response.created", response=self._response(None))
        head += self._event("response.in_progress", response=self._response(None))
        head += self._event("response.output_item.added", output_index=0, item=empty)
        yield head + self._event("response.content_part.added", **place, part=_part(""))
        chunks = first
        while chunks:
            for chunk in chunks:
                so_far.add(chunk)
                if chunk.text:
                    yield self._event("response.output_text.delta", **place, delta=chunk.text, logprobs=[])
            chunks = await self._generation.take()
        tail = self._event("response.output_text.done", **place, text=so_far.text, logprobs=[])
        tail += self._event("response.content_part.done", **place, part=_part(so_far.text))
        tail += self._event("response.output_item.done", output_index=0, item=self._item(so_far))
        answer = self._response(so_far)
        yield tail + self._event(f"response.{answer['status']}", response=answer)

    def _event(self, kind: str, **fields: object) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    def _item(self, chunk: Chunk) -> dict[str, object]:
        status = _status(chunk)
        content = [_part(chunk.text)]
        return {"id": self._item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _response(self, chunk: Chunk | None) -> dict[str, object]:
        status = "in_progress" if chunk is None else _status(chunk)
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "instructions": self._body.instructions,
            "max_output_tokens": self._body.max_output_tokens,
            "metadata": self._body.metadata or {},
            "model": self._model,
            "output": [] if chunk is None else [self._item(chunk)],
            "parallel_tool_calls": False,
            "temperature": self._body.temperature,
            "tool_choice": "none",
            "tools": [],
            "top_p": self._body.top_p,
            "usage": None if chunk is None else self._usage(),
        }

    def _usage(self) -> dict[str, object]:
        output = self._generation.outputs[0]
        cached = min(output.cached_tokens, output.prompt_tokens)
        return {
            "input_tokens": output.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": output.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": output.prompt_tokens + output.completion_tokens,
        }


def _part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _status(chunk: Chunk) -> str:
    if chunk.finish is None:
        return "in_progress"
    return "completed" if chunk.finish.reason == "stop" else "incomplete"
