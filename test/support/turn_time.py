"""A turn of the scheduler's loop and what it costs, without a model."""

import time

from sglang.srt.core.clock import MonotonicClock
from sglang.srt.core.grammar import Grammars
from sglang.srt.core.step import SampledToken, StepPlan, StepResult
from sglang.srt.core.trace import NullTracer
from sglang.srt.ipc.channel import Channel
from sglang.srt.ipc.local_channel import local_pair
from sglang.srt.managers.limits import Limits
from sglang.srt.managers.role import UnifiedRole
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.cache_manager import CacheManager
from sglang.srt.messages.frontend import ToFrontend, ToScheduler
from support.sim import NoWaiter

BOUND_S = 0.005


class InstantWorker:
    """Answers a step at the next poll."""

    def __init__(self) -> None:
        self.results: list[StepResult] = []

    def submit(self, plan: StepPlan) -> None:
        sampled = tuple(SampledToken(slot=row.slot, token=7) for row in plan.rows if row.sample)
        self.results.append(
            StepResult(step_id=plan.step_id, sampled=sampled, started_ns=1, forward_ended_ns=2, ended_ns=3)
        )

    def poll(self) -> list[StepResult]:
        results, self.results = self.results[:1], self.results[1:]
        return results

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        pass


def instant_scheduler(
    max_running: int, grammars: Grammars | None = None
) -> tuple[Scheduler, Channel[ToFrontend, ToScheduler]]:
    """A scheduler that stands alone over an InstantWorker, with room for long requests; and who talks to it."""
    front, back = local_pair(ToScheduler, ToFrontend)  # type: ignore[type-abstract]
    scheduler = Scheduler(
        limits=Limits(
            max_running=max_running, max_queued=1000, chunk=8192, max_prefill=1 << 20, context=8192, layers=30
        ),
        cache=CacheManager(num_pages=16_000, page_size=16),
        worker=InstantWorker(),  # type: ignore[arg-type]
        role=UnifiedRole(),
        channel=back,
        waiter=NoWaiter(),
        clock=MonotonicClock(),
        tracer=NullTracer(),
        grammars=grammars,
    )
    return scheduler, front


def cpu_of_turns(scheduler: Scheduler, count: int) -> list[float]:
    """Processor time of each turn: other processes of the machine do not count."""
    found = []
    for _ in range(count):
        start = time.thread_time()
        scheduler.turn()
        found.append(time.thread_time() - start)
    return sorted(found)
