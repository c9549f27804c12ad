"""A request's life as slices: queued, to first token, request. Times are the engine's own clock's."""

from sglang.srt.core.trace import Tracer
from sglang.srt.managers.request import Request


class Timeline:
    """Reports requests to a tracer."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def queued(self, request: Request) -> None:
        """The request is known from now on."""
        if request.trace:
            self._tracer.bind(request.rid, request.trace)

    def admitted(self, request: Request, now: float) -> None:
        """It holds pages for the first time."""
        if request.admitted_at is None:
            request.admitted_at = now
            self._slice("queued", request, request.arrived, now)

    def first_token(self, request: Request, now: float) -> None:
        """Its first token was accepted."""
        if request.first_token_at is None:
            request.first_token_at = now
            self._slice("to first token", request, request.arrived, now)

    def ended(self, request: Request, now: float) -> None:
        """It is over."""
        if request.first_token_at is not None:
            self._slice("decode", request, request.first_token_at, now, tokens=request.generated)
        if request.admitted_at is not None and request.limit == 0:
            self._slice("prefill", request, request.admitted_at, now, tokens=request.prompt_length)
        self._tracer.release(request.rid)

    def _slice(self, name: str, request: Request, start: float, end: float, **details: int) -> None:
        self._tracer.slice("requests", name, int(start * 1e9), int(end * 1e9), rid=request.rid, **details)
