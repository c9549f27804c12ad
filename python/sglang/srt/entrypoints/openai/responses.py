"""/v1/responses: OpenAI's newer dialect over the same conversation as chat. Nothing is stored."""

import time
import uuid
from collections.abc import AsyncGenerator

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from sglang.srt.entrypoints.front import Front
from sglang.srt.entrypoints.generation import Chunk, Finish, Generation
from sglang.srt.entrypoints.http_tools import read_body, respond
from sglang.srt.entrypoints.openai.chat import prepare_chat
from sglang.srt.entrypoints.openai.chat_parsing import ChatParsing
from sglang.srt.entrypoints.openai.responses_protocol import ResponsesBody
from sglang.srt.entrypoints.openai.tools import call_id
from sglang.srt.entrypoints.openapi import DirectRoute, body_schema
from sglang.srt.entrypoints.parsers.items import Closed, Grown, Item, ItemList, ItemStep, Opened

_PREFIX = {"text": "msg", "reasoning": "rs", "call": "fc"}


def responses_routes(front: Front) -> APIRouter:
    """The route over `front`."""
    router = APIRouter(route_class=DirectRoute)

    @router.post("/v1/responses", openapi_extra=body_schema(ResponsesBody))
    async def responses(request: Request) -> Response:
        body = await read_body(request, ResponsesBody)
        front.check_model(body.model)
        body.check()
        wanted, parsing = await prepare_chat(body.chat(), front)
        generation = front.generate([wanted], stream=bool(body.stream))
        return await respond(request, generation, _Reply(body, front, generation, parsing), stream=bool(body.stream))

    return router


class _Reply:
    """Shows a generation as a response object, or as its events."""

    def __init__(self, body: ResponsesBody, front: Front, generation: Generation, parsing: ChatParsing) -> None:
        self._body = body
        self._generation = generation
        self._parser = parsing.parser()
        self._list = ItemList()
        self._ids: list[tuple[str, str]] = []
        """(id, call id) of each item."""
        self._finish: Finish | None = None
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = front.config.served_model_name
        self._number = 0

    async def whole(self) -> bytes:
        self._take((await self._generation.collect())[0])
        return orjson.dumps(self._response(ended=True))

    async def events(self, first: list[Chunk]) -> AsyncGenerator[bytes, None]:
        head = self._event("response.created", response=self._response(ended=False))
        yield head + self._event("response.in_progress", response=self._response(ended=False))
        chunks = first
        while chunks:
            for chunk in chunks:
                shown = b"".join(self._shown(step) for step in self._take(chunk))
                if shown:
                    yield shown
            chunks = await self._generation.take()
        answer = self._response(ended=True)
        yield self._event(f"response.{answer['status']}", response=answer)

    def _take(self, chunk: Chunk) -> list[ItemStep]:
        events = self._parser.push(chunk.text)
        if chunk.finish is None:
            steps = self._list.push(events)
        else:
            self._finish = chunk.finish
            steps = self._list.push([*events, *self._parser.finish()]) + self._list.finish()
        for step in steps:
            if isinstance(step, Opened):
                self._ids.append((f"{_PREFIX[step.item.kind]}_{uuid.uuid4().hex}", call_id()))
        return steps

    def _shown(self, step: ItemStep) -> bytes:
        item = step.item
        place: dict[str, object] = {"item_id": self._ids[item.number][0], "output_index": item.number}
        inner = place if item.kind == "call" else {**place, "content_index": 0}
        match step:
            case Opened():
                added = {**self._item(item), **({} if item.kind == "call" else {"content": []})}
                opened = self._event("response.output_item.added", output_index=item.number, item=added)
                if item.kind == "text":
                    opened += self._event("response.content_part.added", **inner, part=_part(""))
                return opened
            case Grown(_, piece):
                extra: dict[str, object] = {"logprobs": []} if item.kind == "text" else {}
                return self._event(f"response.{_STREAM[item.kind]}.delta", **inner, delta=piece, **extra)
            case Closed():
                return self._closed(item, place, inner)

    def _closed(self, item: Item, place: dict[str, object], inner: dict[str, object]) -> bytes:
        kind = f"response.{_STREAM[item.kind]}.done"
        match item.kind:
            case "call":
                shown = self._event(kind, **place, name=item.name, arguments=item.text)
            case "reasoning":
                shown = self._event(kind, **inner, text=item.text)
            case "text":
                shown = self._event(kind, **inner, text=item.text, logprobs=[])
                shown += self._event("response.content_part.done", **inner, part=_part(item.text))
        return shown + self._event("response.output_item.done", output_index=item.number, item=self._item(item))

    def _event(self, kind: str, **fields: object) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"

    def _item(self, item: Item) -> dict[str, object]:
        own, call = self._ids[item.number]
        last = item.number == len(self._list.items) - 1
        status = "in_progress" if not item.closed else self._status() if last else "completed"
        match item.kind:
            case "call":
                said = {"name": item.name, "arguments": item.text}
                return {"id": own, "type": "function_call", "status": status, "call_id": call, **said}
            case "reasoning":
                thoughts = [{"type": "reasoning_text", "text": item.text}]
                return {"id": own, "type": "reasoning", "status": status, "summary": [], "content": thoughts}
            case "text":
                parts = [_part(item.text)]
                return {"id": own, "type": "message", "role": "assistant", "status": status, "content": parts}

    def _status(self) -> str:
        return "completed" if self._finish is None or self._finish.reason == "stop" else "incomplete"

    def _response(self, *, ended: bool) -> dict[str, object]:
        status = self._status() if ended else "in_progress"
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        body = self._body
        asked = body.model_dump(mode="json", by_alias=True, exclude_none=True, include={"tool_choice", "tools", "text"})
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._model,
            "output": [self._item(item) for item in self._list.items] if ended else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "temperature": body.temperature,
            "tool_choice": asked.get("tool_choice", "auto"),
            "tools": asked.get("tools", []),
            "text": asked.get("text", {"format": {"type": "text"}}),
            "top_p": body.top_p,
            "usage": self._usage() if ended else None,
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


_STREAM = {"text": "output_text", "reasoning": "reasoning_text", "call": "function_call_arguments"}


def _part(text: str) -> dict[str, object]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
