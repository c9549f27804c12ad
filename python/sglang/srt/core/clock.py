"""Monotonic time behind a seam, so that deadlines can be tested without waiting."""

import time
from typing import Protocol


class Clock(Protocol):
    """A source of monotonic time."""

    def now(self) -> float:
        """Seconds since an arbitrary origin; never goes back."""
        ...


class MonotonicClock:
    """The machine's CLOCK_MONOTONIC, the one that native threads stamp their events with."""

    def now(self) -> float:
        return time.monotonic()


class FakeClock:
    """A clock that moves only when a test says so."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move time forward; raises ValueError for a negative step, since monotonic time has none."""
        if seconds < 0:
            raise ValueError(f"monotonic time cannot go back by {-seconds} s")
        self._now += seconds
