"""What every request passes before a route: the API key and the size limit. Plain ASGI: no cost per stream event."""

import hmac
from contextvars import ContextVar

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglang.srt.entrypoints.openai.errors import response_of
from sglang.srt.errors import RequestError

BODY_LIMIT = 32 << 20
"""Bytes of a request body: a million token ids in JSON take 7 MB."""

OPEN_PATHS = frozenset({"/health", "/health_generate", "/ready", "/ping", "/metrics"})
"""Probes and scrapers carry no key."""


class ApiKey:
    """Refuses requests without `Authorization: Bearer KEY` or, as Anthropic's clients send it, `x-api-key: KEY`."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            headers = dict(scope["headers"])
            bare = headers.get(b"x-api-key")
            given = b"Bearer " + bare if bare else headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                error = RequestError("wrong or missing API key", status=401, kind="authentication_error")
                await response_of(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BrowserCors:
    """CORS for requests that carry an Origin, which only browsers send; others pass without its cost."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._cors = CORSMiddleware(app, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        browser = scope["type"] == "http" and any(name == b"origin" for name, _ in scope["headers"])
        await (self._cors if browser else self._app)(scope, receive, send)


class TraceParent:
    """Hands the client's traceparent header to whatever starts a generation."""

    def __init__(self, app: ASGIApp, variable: ContextVar[str]) -> None:
        self._app = app
        self._variable = variable

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        if scope["type"] == "http":
            given: bytes = dict(scope["headers"]).get(b"traceparent", b"")
            self._variable.set(given.decode("latin-1"))
        await self._app(scope, receive, send)


class BodyLimit:
    """Refuses bodies over a limit, announced or not."""

    def __init__(self, app: ASGIApp, limit: int = BODY_LIMIT) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._limit:
            await response_of(self._too_large())(scope, receive, send)
            return
        seen = 0

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._limit:
                raise self._too_large()
            return message

        await self._app(scope, limited, send)

    def _too_large(self) -> RequestError:
        return RequestError(f"the body passes the limit of {self._limit} bytes", status=413)
