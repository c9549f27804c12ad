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

    def close(self) -> None:
        """Write out what is buffered; idempotent."""
        ...


class NullTracer:
    """Tracing is off."""

    enabled = False

    def slice(self, track: str, name: str, start_ns: int, end_ns: int, **details: int | float | str) -> None:
        pass

    def instant(self, track: str, name: str, at_ns: int, **details: int | float | str) -> None:
        pass

    def close(self) -> None:
        pass
