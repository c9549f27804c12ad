"""Tables for state machines: every (state, event) pair is either a transition, ignored on purpose, or an error."""

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from sglang.srt.errors import EngineError

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class Table(Generic[S, E]):
    """Transitions of one kind of machine. A pair that is absent is a bug of the caller and raises EngineError."""

    def __init__(self, name: str, moves: Mapping[tuple[S, E], S]) -> None:
        self.name = name
        self.moves = dict(moves)

    def next(self, state: S, event: E) -> S:
        """The state after `event`; raises EngineError for a pair that the table does not allow."""
        try:
            return self.moves[state, event]
        except KeyError:
            raise EngineError(f"{self.name}: {event.name} cannot happen in {state.name}") from None


class RequestState(Enum):
    """The life of a request in one engine's scheduler."""

    WAITING = "waiting"
    """In the queue; holds nothing."""
    TRANSFERRING = "transferring"
    """Holds pages that a prefill engine writes."""
    PREFILLING = "prefilling"
    """Holds pages and a row; its prompt is being computed here."""
    RUNNING = "running"
    """Holds pages and a row; decodes."""
    RETRACTING = "retracting"
    """Loses its pages to older requests once its step in flight is over."""
    DRAINING = "draining"
    """Answered, but a step or a write may still touch its pages."""
    FINISHED = "finished"
    """Holds nothing."""


class RequestEvent(Enum):
    """What moves a request."""

    ADMIT_LOCAL = "admit_local"
    ADMIT_REMOTE = "admit_remote"
    PREFILLED = "prefilled"
    ARRIVED = "arrived"
    RETURNED = "returned"
    """Its transfer failed or was given up, and nothing is in flight: back to the queue."""
    RETRACT = "retract"
    END = "end"
    QUIET = "quiet"
    """Neither a step nor a write is in flight any more."""


_S, _E = RequestState, RequestEvent
REQUEST_TABLE: Table[RequestState, RequestEvent] = Table(
    "request",
    {
        (_S.WAITING, _E.ADMIT_LOCAL): _S.PREFILLING,
        (_S.WAITING, _E.ADMIT_REMOTE): _S.TRANSFERRING,
        (_S.WAITING, _E.END): _S.FINISHED,
        (_S.TRANSFERRING, _E.ARRIVED): _S.RUNNING,
        (_S.TRANSFERRING, _E.RETURNED): _S.WAITING,
        (_S.TRANSFERRING, _E.END): _S.DRAINING,
        (_S.PREFILLING, _E.PREFILLED): _S.RUNNING,
        (_S.PREFILLING, _E.END): _S.DRAINING,
        (_S.RUNNING, _E.RETRACT): _S.RETRACTING,
        (_S.RUNNING, _E.END): _S.DRAINING,
        (_S.RETRACTING, _E.QUIET): _S.WAITING,
        (_S.RETRACTING, _E.END): _S.DRAINING,
        (_S.DRAINING, _E.QUIET): _S.FINISHED,
    },
)
