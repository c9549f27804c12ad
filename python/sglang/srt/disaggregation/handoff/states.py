"""The transfer's life on each side, as tables. Terminal states swallow every late event: exactly one end a side."""

from enum import Enum

from sglang.srt.core.states import Table


class DestinationState(Enum):
    """The decode engine's side."""

    ASKED = "asked"
    """Pages and slot are reserved, the slot counts, the ask is sent."""
    ACCEPTED = "accepted"
    """The prefill engine has it in its queue or works on it."""
    CANCELLING = "cancelling"
    """Given up; writes may still land until the prefill engine says drained."""
    READY = "ready"
    """Every byte is here."""
    REJECTED = "rejected"
    """Refused before any write."""
    FAILED = "failed"
    """The prefill engine could not do it and has nothing in flight."""
    DRAINED = "drained"
    """Given up, and nothing can land any more."""
    FENCED = "fenced"
    """The peer's memory key is revoked: nothing of it can land any more."""


class DestinationEvent(Enum):
    ACK = "ack"
    COMPLETE = "complete"
    """The slot's count reached the expected weight."""
    REJECT = "reject"
    FAIL = "fail"
    CANCEL = "cancel"
    TIMEOUT = "timeout"
    DRAINED = "drained"
    PEER_LOST = "peer_lost"
    """Raised after the key was revoked, never before."""


DESTINATION_ENDS = frozenset(
    {
        DestinationState.READY,
        DestinationState.REJECTED,
        DestinationState.FAILED,
        DestinationState.DRAINED,
        DestinationState.FENCED,
    }
)

_D, _DE = DestinationState, DestinationEvent
DESTINATION_TABLE: Table[DestinationState, DestinationEvent] = Table(
    "destination",
    {
        (_D.ASKED, _DE.ACK): _D.ACCEPTED,
        (_D.ASKED, _DE.COMPLETE): _D.READY,
        (_D.ASKED, _DE.REJECT): _D.REJECTED,
        (_D.ASKED, _DE.FAIL): _D.FAILED,
        (_D.ASKED, _DE.CANCEL): _D.CANCELLING,
        (_D.ASKED, _DE.TIMEOUT): _D.CANCELLING,
        (_D.ASKED, _DE.DRAINED): _D.ASKED,
        (_D.ASKED, _DE.PEER_LOST): _D.FENCED,
        (_D.ACCEPTED, _DE.ACK): _D.ACCEPTED,
        (_D.ACCEPTED, _DE.COMPLETE): _D.READY,
        (_D.ACCEPTED, _DE.REJECT): _D.REJECTED,
        (_D.ACCEPTED, _DE.FAIL): _D.FAILED,
        (_D.ACCEPTED, _DE.CANCEL): _D.CANCELLING,
        (_D.ACCEPTED, _DE.TIMEOUT): _D.CANCELLING,
        (_D.ACCEPTED, _DE.DRAINED): _D.ACCEPTED,
        (_D.ACCEPTED, _DE.PEER_LOST): _D.FENCED,
        (_D.CANCELLING, _DE.ACK): _D.CANCELLING,
        # Every expected write has landed, so none can be in flight: as good as a drained.
        (_D.CANCELLING, _DE.COMPLETE): _D.DRAINED,
        (_D.CANCELLING, _DE.REJECT): _D.DRAINED,
        (_D.CANCELLING, _DE.FAIL): _D.DRAINED,
        (_D.CANCELLING, _DE.CANCEL): _D.CANCELLING,
        # The peer does not answer a cancel: the caller must declare it lost, which fences it.
        (_D.CANCELLING, _DE.TIMEOUT): _D.CANCELLING,
        (_D.CANCELLING, _DE.DRAINED): _D.DRAINED,
        (_D.CANCELLING, _DE.PEER_LOST): _D.FENCED,
        **{(end, event): end for end in DESTINATION_ENDS for event in _DE},
    },
)


class SourceState(Enum):
    """The prefill engine's side."""

    QUEUED = "queued"
    PREFILLING = "prefilling"
    """Its chunks are being computed and their writes posted."""
    SENDING = "sending"
    """Everything is computed; writes are in flight."""
    CANCELLING = "cancelling"
    """The decode engine gave it up and waits for our drained."""
    FAILING = "failing"
    """A write failed; waits until the others are over."""
    ABANDONING = "abandoning"
    """The decode engine is lost; waits until nothing is in flight."""
    DONE = "done"
    DRAINED = "drained"
    FAILED = "failed"
    ABANDONED = "abandoned"


class SourceEvent(Enum):
    ADMIT = "admit"
    COMPUTED = "computed"
    QUIET = "quiet"
    """No step computes it and none of its writes is in flight."""
    CANCEL = "cancel"
    WRITE_FAILED = "write_failed"
    PEER_LOST = "peer_lost"


SOURCE_ENDS = frozenset({SourceState.DONE, SourceState.DRAINED, SourceState.FAILED, SourceState.ABANDONED})

_P, _PE = SourceState, SourceEvent
SOURCE_TABLE: Table[SourceState, SourceEvent] = Table(
    "source",
    {
        (_P.QUEUED, _PE.ADMIT): _P.PREFILLING,
        (_P.QUEUED, _PE.CANCEL): _P.DRAINED,
        (_P.QUEUED, _PE.PEER_LOST): _P.ABANDONED,
        (_P.PREFILLING, _PE.COMPUTED): _P.SENDING,
        (_P.PREFILLING, _PE.QUIET): _P.PREFILLING,
        (_P.PREFILLING, _PE.CANCEL): _P.CANCELLING,
        (_P.PREFILLING, _PE.WRITE_FAILED): _P.FAILING,
        (_P.PREFILLING, _PE.PEER_LOST): _P.ABANDONING,
        (_P.SENDING, _PE.QUIET): _P.DONE,
        (_P.SENDING, _PE.CANCEL): _P.CANCELLING,
        (_P.SENDING, _PE.WRITE_FAILED): _P.FAILING,
        (_P.SENDING, _PE.PEER_LOST): _P.ABANDONING,
        (_P.CANCELLING, _PE.QUIET): _P.DRAINED,
        (_P.CANCELLING, _PE.COMPUTED): _P.CANCELLING,
        (_P.CANCELLING, _PE.CANCEL): _P.CANCELLING,
        (_P.CANCELLING, _PE.WRITE_FAILED): _P.CANCELLING,
        (_P.CANCELLING, _PE.PEER_LOST): _P.ABANDONING,
        (_P.FAILING, _PE.QUIET): _P.FAILED,
        (_P.FAILING, _PE.COMPUTED): _P.FAILING,
        (_P.FAILING, _PE.CANCEL): _P.CANCELLING,
        (_P.FAILING, _PE.WRITE_FAILED): _P.FAILING,
        (_P.FAILING, _PE.PEER_LOST): _P.ABANDONING,
        (_P.ABANDONING, _PE.QUIET): _P.ABANDONED,
        (_P.ABANDONING, _PE.COMPUTED): _P.ABANDONING,
        (_P.ABANDONING, _PE.CANCEL): _P.ABANDONING,
        (_P.ABANDONING, _PE.WRITE_FAILED): _P.ABANDONING,
        (_P.ABANDONING, _PE.PEER_LOST): _P.ABANDONING,
        **{(end, event): end for end in SOURCE_ENDS for event in _PE},
    },
)
