"""A request's timeline behind a seam: rooms report slices and instants, a sink may keep them."""

from typing import Protocol


class Tracer(Protocol):
    """Takes events from any thread. Times are CLOCK_MONOTONIC nanoseconds, one clock for every process of a machine."""

    enabled: bool
    """Ask before computing anything that only a trace needs."""

    def slice(self, track: str, name: str, start_ns: int, end_ns: int, **details: int | float | str) -> None:
        """Something that took time."""
        ...

    def instant(self, track: str, name: str, at_ns: int, **details: int | float | str) -> None:
        """Something that happened."""
        ...

    def bind(self, rid: str, context: str) -> None:
        """What is reported with this `rid` belongs to the trace of `context` (W3C traceparent), until `release`."""
        ...

    def release(self, rid: str) -> None:
        """The request is over; a no-op where nothing was bound."""
        ...

    def close(self) -> None:
        """Write out what is buffered; idempotent."""
        ...


class RootSpan(Protocol):
    """A client's request as a span that has begun."""

    @property
    def context(self) -> str:
        """W3C traceparent that its parts name as their parent."""
        ...

    def end(self, **details: int | float | str) -> None:
        """It is over now."""
        ...


class RequestSpans(Protocol):
    """Makes the root span of each request."""

    def begin(self, name: str, parent: str) -> RootSpan:
        """A span under the client's traceparent, or a new trace where that is empty."""
        ...


class NullTracer:
    """Tracing is off."""

    enabled = False

    def slice(self, track: str, name: str, start_ns: int, end_ns: int, **details: int | float | str) -> None:
        pass

    def instant(self, track: str, name: str, at_ns: int, **details: int | float | str) -> None:
        pass

    def bind(self, rid: str, context: str) -> None:
        pass

    def release(self, rid: str) -> None:
        pass

    def close(self) -> None:
        pass
