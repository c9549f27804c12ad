"""What the scheduler and its roles need from the outside, as protocols. Implementations live in rooms they may not
import.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from sglang.srt.core.step import StepPlan, StepResult


class Worker(Protocol):
    """Executes steps in the order of submission, in its own thread or processes."""

    def submit(self, plan: StepPlan) -> None:
        """Queue a step. Never blocks; the scheduler keeps at most two steps in flight."""
        ...

    def poll(self) -> list[StepResult]:
        """Finished steps in order, without blocking. Raises EngineError with the worker's traceback once it has
        died.
        """
        ...

    def fileno(self) -> int:
        """A descriptor that is readable while poll() would return something or raise."""
        ...

    def close(self) -> None:
        """Stop after the step that runs now; idempotent."""
        ...


class Waiter(Protocol):
    """Sleeps until one of the scheduler's sources has something."""

    def wait(self, seconds: float) -> None:
        """Return at the first event, or after `seconds`; 0 only looks."""
        ...


class RemoteRegion(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's KV region on a peer, as this engine may write to it."""

    rank: int
    base: int
    key: int
    nbytes: int


class PageCopies(msgspec.Struct, frozen=True, kw_only=True):
    """One extent of a list of pages, from one source rank to one destination rank."""

    source_rank: int
    destination_rank: int
    source_offset: int
    destination_offset: int
    nbytes: int
    source_pages: tuple[int, ...]
    destination_pages: tuple[int, ...]


class LayerWrites(msgspec.Struct, frozen=True, kw_only=True):
    """What one step completes of one transfer: for every layer, these copies, once the counter says so.

    The layer hook's counter reads `base + layer + 1` when a layer's KV is complete; without a base the KV is there
    already.
    """

    peer: str
    slot: int
    base: int | None
    copies: tuple[PageCopies, ...]


class WritesDone(msgspec.Struct, frozen=True, kw_only=True):
    """All writes of a LayerWrites are delivered. Times are CLOCK_MONOTONIC nanoseconds, one a layer."""

    handle: int
    seen_ns: tuple[int, ...]
    posted_ns: tuple[int, ...]
    layer_bytes: tuple[int, ...]


class WritesEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A LayerWrites ended early and nothing of it is in flight: cancelled (no reason) or failed."""

    handle: int
    reason: str


class SlotFilled(msgspec.Struct, frozen=True, kw_only=True):
    """A counting slot reached its expected weight."""

    slot: int
    at_ns: int


class PeerUnreachable(msgspec.Struct, frozen=True, kw_only=True):
    """The fabric gave up on a peer; its writes end as WritesEnded on their own."""

    peer: str
    reason: str


MessengerEvent = WritesDone | WritesEnded | SlotFilled | PeerUnreachable


class KVMessenger(Protocol):
    """Moves KV pages between engines; `check_messenger` in test/conformance holds every implementation to this."""

    @property
    def provider(self) -> str:
        """What carries the bytes; both sides must agree."""
        ...

    @property
    def address(self) -> bytes:
        """Where peers reach this engine's memory; opaque."""
        ...

    def grant(self, peer: str) -> tuple[RemoteRegion, ...]:
        """Regions that `peer` may write, under keys of its own. Raises EngineError where it has a grant already."""
        ...

    def locate(self, peer: str, address: bytes) -> None:
        """Say where a granted peer's writes come from: a later revoke() cuts off that peer and nobody else.

        Without it a revoke may also break other peers' writes in flight, on providers that can only cut connections.
        Raises EngineError for an address that is none.
        """
        ...

    def revoke(self, peer: str) -> None:
        """After this returns, nothing that `peer` sends can land. A no-op without a grant."""
        ...

    def connect(self, peer: str, address: bytes, regions: Sequence[RemoteRegion], destination_pages: int) -> None:
        """Make `peer` a target of writes; `destination_pages` is the page count of each of its pools.

        Raises EngineError for an address or a region that cannot be used.
        """
        ...

    def disconnect(self, peer: str) -> None:
        """Forget a target; its writes end as WritesEnded. A no-op for an unknown peer."""
        ...

    def expect(self, slot: int, weight: int) -> None:
        """Count immediates of `slot` from now on; SlotFilled once they add up to `weight`."""
        ...

    def forget(self, slot: int) -> int:
        """Free a slot; returns what it had counted. Later immediates for it are strays."""
        ...

    def arm(self, writes: LayerWrites) -> int:
        """Hand over one program before its forward starts; returns its handle. Ends as WritesDone or WritesEnded."""
        ...

    def cancel(self, handle: int) -> None:
        """Stop posting and wait out what is in flight: WritesEnded, or WritesDone where it was too late."""
        ...

    def poll(self) -> list[MessengerEvent]:
        """Everything that happened, without blocking."""
        ...

    def fileno(self) -> int:
        """Readable while poll() would return something."""
        ...

    def counters(self) -> dict[str, float]:
        """Monotonic totals for /metrics: bytes, writes, immediates, strays."""
        ...

    def close(self) -> None:
        """Stop threads and release memory keys; idempotent."""
        ...
