"""What the lead and a rank's process say to each other over their socket. Plans take another way (`exchange.py`)."""

import msgspec

from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.step import StepPlan
from sglang.srt.messages.codec import Codec
from sglang.srt.model_executor.options import WorkerOptions

MAX_MESSAGE = 64 << 10
"""Bytes of a message on the socket."""
MAX_TRACEBACK = 32 << 10
"""Characters of a traceback that are sent; its end is what tells."""


class RankStart(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The first message to a rank, and with it the descriptor of the exchange."""

    model_path: str
    options: WorkerOptions
    rank: int
    size: int
    cores: tuple[int, ...]
    """Where it is pinned; everywhere where empty."""
    log_level: str = "info"


class RankLoaded(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Its weights are there."""


class RankAllocate(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """Make a pool of so many pages."""

    pages: int


class RankPool(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The pool is there, and with this message its descriptor."""

    nbytes: int


class RankFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """The rank's last words."""

    traceback: str


ToRank = RankStart | RankAllocate
FromRank = RankLoaded | RankPool | RankFailed


def to_rank() -> Codec[ToRank]:
    """For messages of the lead."""
    return Codec(ToRank, limit=MAX_MESSAGE)


def from_rank() -> Codec[FromRank]:
    """For messages to the lead."""
    return Codec(FromRank, limit=MAX_MESSAGE)


class PlanCodec:
    """Plans as the ranks that do not sample need them."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(StepPlan)
        self._plain = SamplingParams()

    def encode(self, plan: StepPlan) -> bytes:
        """Rows open without their sampling: histories for penalties can be as long as the context."""
        if plan.opened:
            opened = tuple(
                msgspec.structs.replace(row, sampling=self._plain, prompt=(), outputs=()) for row in plan.opened
            )
            plan = msgspec.structs.replace(plan, opened=opened)
        return self._encoder.encode(plan)

    def decode(self, data: bytes) -> StepPlan:
        """Raises msgspec.DecodeError; only the lead writes here, so that is a bug."""
        return self._decoder.decode(data)
