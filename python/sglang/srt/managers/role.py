"""What differs between a unified engine, a prefill engine and a decode engine: where a request's KV comes from and
goes to.
"""

from enum import Enum
from typing import Protocol

from sglang.srt.core.step import StepResult, StepRow
from sglang.srt.managers.request import Request
from sglang.srt.mem_cache.cache_manager import CacheManager


class Route(Enum):
    """Where the KV that a request lacks will come from."""

    LOCAL = "local"
    REMOTE = "remote"
    WAIT = "wait"
    """Not now: the request stays in the queue, others may pass."""
    REFUSED = "refused"
    """The role has refused it."""


class Desk(Protocol):
    """The scheduler, as its role sees it."""

    cache: CacheManager

    def now(self) -> float:
        """Seconds on the engine's clock."""
        ...

    def enqueue(self, request: Request) -> None:
        """Take a request into the waiting queue."""
        ...

    def arrived(self, request: Request) -> None:
        """The KV of all but the last token is in the request's pages: decode it."""
        ...

    def returned(self, request: Request, not_before: float) -> None:
        """Its transfer ended without KV and nothing is in flight: release its pages, queue it again."""
        ...

    def refuse(self, request: Request, message: str, *, status: int = 503, retry_after_s: float | None = None) -> None:
        """Answer a request that cannot be served; it holds nothing, or its role keeps its pages until settle()."""
        ...

    def end(self, request: Request, reason: str) -> None:
        """Finish a request; its pages go once neither a step nor its role holds it."""
        ...

    def settle(self, request: Request) -> None:
        """The role holds the request no more."""
        ...


class Role:
    """Hooks of the scheduler's loop, all called in its thread; none may block.

    What stands here is the life of an engine that is alone: every request's KV is made and used in its own pages. A
    disaggregated role says how it differs.
    """

    name = "null"
    samples = True
    """Whether requests decode here; a prefill engine only fills KV."""

    def attach(self, desk: Desk) -> None:
        """Called once, before the loop starts."""

    # --- the loop ---

    def poll(self) -> None:
        """Look at peers and transfers, and at deadlines."""

    def deadline(self) -> float:
        """When poll() must run at the latest, on the engine's clock; infinity for never."""
        return float("inf")

    def leave(self) -> None:
        """The engine was told to finish what it has and end: take nothing new from peers."""

    def departed(self) -> bool:
        """After leave(), with every request over: whether peers have let go of this engine, or do not answer."""
        return True

    def close(self) -> None:
        """Leave peers in order."""

    # --- where a request's KV comes from ---

    def route(self, request: Request, cached: int, leader_done: bool) -> Route:
        """Where to get the KV beyond the first `cached` tokens. `leader_done`: a request of the same group has it
        here.
        """
        return Route.LOCAL

    def launch(self, request: Request) -> None:
        """A REMOTE request holds its pages: ask for its KV."""
        raise AssertionError(f"role {self.name} routes nothing elsewhere")

    # --- what is computed here ---

    def admitted(self, request: Request) -> None:
        """A LOCAL request holds its pages; its first `cached_tokens` are there."""

    def planned(self, request: Request, row: StepRow, base: int, step_id: int) -> None:
        """`row` goes into the next step, before whose first layer the counter reads `base`. Called before the
        submit.
        """

    def stepped(self, result: StepResult) -> None:
        """A step is over."""

    def prefilled(self, request: Request) -> None:
        """On a role that does not sample: every token's KV is present."""
        raise AssertionError(f"role {self.name} samples")

    # --- a request's end ---

    def ended(self, request: Request) -> None:
        """The request is over for the client: stop whatever the role does for it."""

    def holds(self, request: Request) -> bool:
        """Whether a write may still touch (or read) the request's pages."""
        return False

    def released(self, request: Request) -> None:
        """The request's pages are the pool's again."""

    # --- state ---

    def gauges(self) -> dict[str, float]:
        """For /metrics."""
        return {}

    def counters(self) -> dict[str, float]:
        """For /metrics."""
        return {}

    def samples_since(self) -> dict[str, tuple[float, ...]]:
        """Observations since the last call, for histograms; bounded."""
        return {}

    def info(self) -> dict[str, str]:
        """For /server_info."""
        return {}


class UnifiedRole(Role):
    """Prefill and decode in one engine."""
