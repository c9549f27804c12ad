"""Parts of HTTP that both dialects share: reading bodies, event streams, clients that go away."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sglang.srt.entrypoints.generation import Chunk, Generation
from sglang.srt.entrypoints.openai.errors import body_of, from_validation
from sglang.srt.errors import RequestError

Model = TypeVar("Model", bound=BaseModel)

DONE = b"data: [DONE]\n\n"


async def read_body(request: Request, model: type[Model], *, empty: bytes = b"") -> Model:
    """The request's JSON as `model`, whatever its content type says; `empty` stands for no body.

    Raises RequestError (400) that names the field.
    """
    raw = await request.body() or empty
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise from_validation(error) from error


def json_response(body: BaseModel) -> Response:
    """`body` as JSON, without fields that are None."""
    return Response(body.model_dump_json(exclude_none=True), media_type="application/json")


class Reply(Protocol):
    """How a dialect shows one generation."""

    async def whole(self) -> bytes:
        """The JSON answer, once all outputs ended."""
        ...

    def events(self, first: list[Chunk]) -> AsyncGenerator[bytes, None]:
        """Server-sent events: for `first`, then for what the generation still gives."""
        ...


async def respond(request: Request, generation: Generation, reply: Reply, *, stream: bool) -> Response:
    """Answers a request and closes its generation, whatever happens.

    The engine's work stops as soon as the client closes the connection, streaming or not.
    """
    watcher = asyncio.create_task(_until_gone(request, generation))
    generation.on_close(watcher.cancel)
    handed_over = False
    try:
        if not stream:
            return Response(await reply.whole(), media_type="application/json")
        # Waiting for the first token lets a refusal be an HTTP status instead of an event.
        first = await generation.take()
        handed_over = True
        return EventStream(reply.events(first), generation.close)
    finally:
        if not handed_over:
            generation.close()


async def _until_gone(request: Request, generation: Generation) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    generation.client_gone()


class EventStream(Response):
    """Server-sent events as they come. Errors after the first event become an error event; `close` always runs."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], close: Callable[[], None]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events; an ASGI application."""
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                async with aclosing(self._events):
                    async for event in self._events:
                        await send({"type": "http.response.body", "body": event, "more_body": True})
            except RequestError as error:
                event = b"data: " + body_of(error) + b"\n\n" + DONE
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._close()
