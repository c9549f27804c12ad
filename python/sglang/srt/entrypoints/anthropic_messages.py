"""/v1/messages: Anthropic's dialect over the same conversation as chat."""

import uuid
from collections.abc import AsyncGenerator

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from sglang.srt.entrypoints.anthropic_protocol import CountBody, MessagesBody
from sglang.srt.entrypoints.front import Front
from sglang.srt.entrypoints.generation import Chunk, Generation
from sglang.srt.entrypoints.http_tools import read_body, respond
from sglang.srt.entrypoints.openai.chat import prepare_chat
from sglang.srt.entrypoints.openai.chat_parsing import ChatParsing
from sglang.srt.entrypoints.openai.errors import response_of
from sglang.srt.entrypoints.openapi import DirectRoute, body_schema
from sglang.srt.entrypoints.parsers.items import Grown, Item, ItemList, ItemStep, Opened
from sglang.srt.errors import RequestError

_KINDS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 503: "overloaded_error"}


def message_routes(front: Front) -> APIRouter:
    """The routes over `front`."""
    router = APIRouter(route_class=DirectRoute)

    @router.post("/v1/messages", openapi_extra=body_schema(MessagesBody))
    async def messages(request: Request) -> Response:
        try:
            body = await read_body(request, MessagesBody)
            front.check_model(body.model)
            wanted, parsing = await prepare_chat(body.body(), front)
            generation = front.generate([wanted], stream=bool(body.stream))
            return await respond(request, generation, _Reply(front, generation, parsing), stream=bool(body.stream))
        except RequestError as error:
            return _refusal(error)

    @router.post("/v1/messages/count_tokens", openapi_extra=body_schema(CountBody))
    async def count_tokens(request: Request) -> Response:
        try:
            body = await read_body(request, CountBody)
            front.check_model(body.model)
            wanted, _ = await prepare_chat(body.body(), front)
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

    def __init__(self, front: Front, generation: Generation, parsing: ChatParsing) -> None:
        self._generation = generation
        self._parser = parsing.parser()
        self._list = ItemList()
        self._id = f"msg_{uuid.uuid4().hex}"
        self._model = front.config.served_model_name

    async def whole(self) -> bytes:
        chunk = (await self._generation.collect())[0]
        self._take(chunk)
        return orjson.dumps({**self._message([_block(item) for item in self._list.items]), **self._end(chunk)})

    async def events(self, first: list[Chunk]) -> AsyncGenerator[bytes, None]:
        yield _event("message_start", message={**self._message([]), "stop_reason": None, "stop_sequence": None})
        end: dict[str, object] = {}
        chunks = first
        while chunks:
            for chunk in chunks:
                shown = b"".join(_shown(step) for step in self._take(chunk))
                if shown:
                    yield shown
                end = self._end(chunk) if chunk.finish else end
            chunks = await self._generation.take()
        yield _event("message_delta", delta=end, usage=self._usage()) + _event("message_stop")

    def _take(self, chunk: Chunk) -> list[ItemStep]:
        events = self._parser.push(chunk.text)
        if chunk.finish is None:
            return self._list.push(events)
        return self._list.push([*events, *self._parser.finish()]) + self._list.finish()

    def _end(self, chunk: Chunk) -> dict[str, object]:
        matched = chunk.finish.matched if chunk.finish else None
        if isinstance(matched, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": matched}
        whole = chunk.finish is not None and chunk.finish.reason == "stop"
        reason = ("tool_use" if self._list.called else "end_turn") if whole else "max_tokens"
        return {"stop_reason": reason, "stop_sequence": None}

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


def _block(item: Item) -> dict[str, object]:
    """An item that is whole."""
    match item.kind:
        case "text":
            return {"type": "text", "text": item.text}
        case "reasoning":
            return {"type": "thinking", "thinking": item.text, "signature": ""}
        case "call":
            return {**_tool_use(item), "input": _arguments(item.text)}


def _tool_use(item: Item) -> dict[str, object]:
    return {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": item.name, "input": {}}


def _arguments(text: str) -> object:
    """A call that was cut off has what cannot be read: it is shown empty, and the stop reason says max_tokens."""
    try:
        return orjson.loads(text or b"{}")
    except orjson.JSONDecodeError:
        return {}


def _shown(step: ItemStep) -> bytes:
    item = step.item
    if isinstance(step, Opened):
        empty = {
            "text": {"type": "text", "text": ""},
            "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
        }
        block = _tool_use(item) if item.kind == "call" else empty[item.kind]
        return _event("content_block_start", index=item.number, content_block=block)
    if isinstance(step, Grown):
        return _event("content_block_delta", index=item.number, delta=_delta(item, step.piece))
    return _event("content_block_stop", index=item.number)


def _delta(item: Item, piece: str) -> dict[str, str]:
    match item.kind:
        case "text":
            return {"type": "text_delta", "text": piece}
        case "reasoning":
            return {"type": "thinking_delta", "thinking": piece}
        case "call":
            return {"type": "input_json_delta", "partial_json": piece}


def _event(kind: str, **fields: object) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"
