"""/v1/messages: Anthropic's dialect for text, over the same conversation as chat."""

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
from sglang.srt.entrypoints.openai.errors import response_of
from sglang.srt.entrypoints.openai.protocol import MAX_MESSAGES, ChatBody, ChatMessage, ContentPart
from sglang.srt.entrypoints.openapi import DirectRoute, body_schema
from sglang.srt.entrypoints.sampling_fields import MAX_STOPS, Body, refuse
from sglang.srt.errors import RequestError

_KINDS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 503: "overloaded_error"}


class Block(Body):
    """A piece of content."""

    type: str
    text: str | None = None


class Turn(Body):
    """One message."""

    role: str = Field(min_length=1, max_length=64)
    content: str | list[Block]


class CountBody(Body):
    """/v1/messages/count_tokens."""

    model: str | None = None
    messages: Annotated[list[Turn], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[Block] | None = None
    tools: Any = None

    def chat(self) -> list[ChatMessage]:
        """The conversation as chat messages."""
        head = [ChatMessage(role="system", content=_content(self.system, "system"))] if self.system else []
        return head + [
            ChatMessage(role=turn.role, content=_content(turn.content, "messages")) for turn in self.messages
        ]


class MessagesBody(CountBody):
    """/v1/messages."""

    max_tokens: int = Field(ge=1)
    stop_sequences: Annotated[list[str], Field(fail_fast=True, max_length=MAX_STOPS)] | None = None
    temperature: float | None = Field(default=None, ge=0, le=1000)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=1 << 31)
    stream: bool | None = None

    def body(self) -> ChatBody:
        """The same request as a chat. Raises RequestError for what is not supported."""
        refuse((("tools", self.tools, ([],)),))
        return ChatBody(
            messages=self.chat(),
            max_completion_tokens=self.max_tokens,
            stop=self.stop_sequences,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
        )


def _content(content: str | list[Block], param: str) -> str | list[ContentPart]:
    if isinstance(content, str):
        return content
    for block in content:
        if block.type != "text" or block.text is None:
            raise RequestError(f"{param}: content of type {block.type!r} is not supported", param=param)
    return [ContentPart(type="text", text=block.text) for block in content]


def message_routes(front: Front) -> APIRouter:
    """The routes over `front`."""
    router = APIRouter(route_class=DirectRoute)

    @router.post("/v1/messages", openapi_extra=body_schema(MessagesBody))
    async def messages(request: Request) -> Response:
        try:
            body = await read_body(request, MessagesBody)
            front.check_model(body.model)
            generation = front.generate([await chat_wanted(body.body(), front)], stream=bool(body.stream))
            return await respond(request, generation, _Reply(front, generation), stream=bool(body.stream))
        except RequestError as error:
            return _refusal(error)

    @router.post("/v1/messages/count_tokens", openapi_extra=body_schema(CountBody))
    async def count_tokens(request: Request) -> Response:
        try:
            body = await read_body(request, CountBody)
            front.check_model(body.model)
            wanted = await chat_wanted(ChatBody(messages=body.chat()), front)
        except RequestError as error:
            return _refusal(error)
        return Response(orjson.dumps({"input_tokens": len(wanted.token_ids)}), media_type="application/json")

    return router


def _refusal(error: RequestError) -> Response:
    """An error in this dialect's shape, with the headers that any dialect gets."""
    shown = response_of(error)
    kind = _KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    content = orjson.dumps({"type": "error", "error": {"type": kind, "message": str(error)}})
    headers = {name: value for name, value in shown.headers.items() if name == "retry-after"}
    return Response(content, error.status, headers, media_type="application/json")


class _Reply:
    """Shows a generation as a message, or as its events."""

    def __init__(self, front: Front, generation: Generation) -> None:
        self._generation = generation
        self._id = f"msg_{uuid.uuid4().hex}"
        self._model = front.config.served_model_name

    async def whole(self) -> bytes:
        chunk = (await self._generation.collect())[0]
        return orjson.dumps({**self._message([{"type": "text", "text": chunk.text}]), **_end(chunk)})

    async def events(self, first: list[Chunk]) -> AsyncGenerator[bytes, None]:
        start = _event("message_start", message={**self._message([]), "stop_reason": None, "stop_sequence": None})
        yield start + _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        end: dict[str, object] = {}
        chunks = first
        while chunks:
            for chunk in chunks:
                if chunk.text:
                    yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": chunk.text})
                end = _end(chunk) if chunk.finish else end
            chunks = await self._generation.take()
        tail = _event("content_block_stop", index=0)
        tail += _event("message_delta", delta=end, usage=self._usage())
        yield tail + _event("message_stop")

    def _message(self, content: list[dict[str, object]]) -> dict[str, object]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "usage": self._usage(),
        }

    def _usage(self) -> dict[str, int]:
        """Anthropic counts cached tokens apart from input tokens."""
        output = self._generation.outputs[0]
        cached = min(output.cached_tokens, output.prompt_tokens)
        return {
            "input_tokens": output.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": output.completion_tokens,
        }


def _end(chunk: Chunk) -> dict[str, object]:
    matched = chunk.finish.matched if chunk.finish else None
    if isinstance(matched, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    reason = "end_turn" if chunk.finish and chunk.finish.reason == "stop" else "max_tokens"
    return {"stop_reason": reason, "stop_sequence": None}


def _event(kind: str, **fields: object) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"
