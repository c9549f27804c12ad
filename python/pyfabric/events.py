"""What Engine.poll() returns. Times are CLOCK_MONOTONIC nanoseconds, the clock of time.monotonic_ns()."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class ProgramDone:
    """Every write of the program was delivered.

    Attributes:
        seen_ns: int64 [layers], when the watcher saw the layer's threshold reached.
        posted_ns: int64 [layers], when the layer's last write was posted.
        layer_bytes: int64 [layers], bytes written for the layer over all lanes.
    """

    handle: int
    seen_ns: NDArray[np.int64]
    posted_ns: NDArray[np.int64]
    layer_bytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ProgramDrained:
    """A cancelled program has nothing in flight any more."""

    handle: int


@dataclass(frozen=True, slots=True)
class ProgramFailed:
    """A program ended early and has nothing in flight any more. `peer` is -1 when no single peer is the cause."""

    handle: int
    peer: int
    reason: str


@dataclass(frozen=True, slots=True)
class SlotComplete:
    """The weight received for a slot reached what was expected."""

    slot: int
    completed_ns: int


@dataclass(frozen=True, slots=True)
class PeerReady:
    """The warming write to the peer was delivered: its connection is up."""

    peer: int


@dataclass(frozen=True, slots=True)
class PeerLost:
    """Nothing could be posted to, or completed by, the peer within the deadline. warm() tries anew."""

    peer: int
    reason: str


Event = ProgramDone | ProgramDrained | ProgramFailed | SlotComplete | PeerReady | PeerLost

_BY_TAG: Final[Mapping[str, Callable[..., Event]]] = {
    "done": ProgramDone,
    "drained": ProgramDrained,
    "failed": ProgramFailed,
    "slot": SlotComplete,
    "ready": PeerReady,
    "lost": PeerLost,
}


def from_native(item: tuple[Any, ...]) -> Event:
    """The event that the native module handed over as (tag, fields...)."""
    return _BY_TAG[item[0]](*item[1:])
