"""The transfers that are alive on one side, each with its one owner object, and the counting slots."""

from dataclasses import dataclass, field

from sglang.srt.disaggregation.handoff.states import (
    DESTINATION_ENDS,
    DESTINATION_TABLE,
    SOURCE_ENDS,
    SOURCE_TABLE,
    DestinationEvent,
    DestinationState,
    SourceEvent,
    SourceState,
)
from sglang.srt.disaggregation.shardmap.plan import ShardCopy
from sglang.srt.errors import EngineError
from sglang.srt.managers.request import Request


@dataclass(slots=True, eq=False)
class Inbound:
    """A transfer as its decode engine knows it."""

    request: Request
    number: int
    generation: int
    peer: str
    slot: int
    weight: int
    tokens: int
    """Tokens that the prefill engine was asked to compute or find."""
    asked_at: float
    deadline: float
    """For the state it is in; seconds on the engine's clock."""
    state: DestinationState = DestinationState.ASKED
    why: str = ""
    hinted: bool = False
    """Rejected for now only."""
    refused: bool = False
    """Rejected for good by this peer."""

    def on(self, event: DestinationEvent) -> bool:
        """Move along the table; whether this move ended the transfer."""
        before = self.state
        self.state = DESTINATION_TABLE.next(before, event)
        return self.state in DESTINATION_ENDS and before not in DESTINATION_ENDS


@dataclass(slots=True, eq=False)
class Outbound:
    """A transfer as its prefill engine knows it."""

    request: Request
    peer: str
    number: int
    generation: int
    slot: int
    first_page: int
    pages: tuple[int, ...]
    """Destination pages of page indices first_page, first_page + 1, ..."""
    copies: tuple[ShardCopy, ...]
    deadline: float
    """When the decode engine has given up if computing has not begun."""
    state: SourceState = SourceState.QUEUED
    why: str = ""
    broken: bool = False
    """Whether a write ended in an error."""
    sent_to: int = 0
    """Page indices below this one are armed (or were not wanted)."""
    handles: set[int] = field(default_factory=set)
    """Programs that have not ended."""

    def on(self, event: SourceEvent) -> bool:
        """Move along the table; whether this move ended the transfer."""
        before = self.state
        self.state = SOURCE_TABLE.next(before, event)
        return self.state in SOURCE_ENDS and before not in SOURCE_ENDS


class TransferSlots:
    """Counting slots of a decode engine. The slot freed longest ago is reused first, which keeps strays
    recognisable.
    """

    def __init__(self, count: int) -> None:
        self._free: dict[int, None] = dict.fromkeys(range(count))
        self._count = count

    @property
    def free(self) -> int:
        """Slots that may be taken."""
        return len(self._free)

    @property
    def used(self) -> int:
        """Slots that count now."""
        return self._count - len(self._free)

    def take(self) -> int:
        """A free slot; raises EngineError where all count."""
        if not self._free:
            raise EngineError(f"all {self._count} transfer slots are in use")
        slot = next(iter(self._free))
        del self._free[slot]
        return slot

    def give(self, slot: int) -> None:
        """Free a slot; raises EngineError where it is free."""
        if slot in self._free or not 0 <= slot < self._count:
            raise EngineError(f"transfer slot {slot} given back twice")
        self._free[slot] = None
