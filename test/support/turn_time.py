"""A turn of the scheduler's loop and what it costs, without a model."""

import time

from sglang.srt.core.step import SampledToken, StepPlan, StepResult
from sglang.srt.managers.scheduler import Scheduler

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


def cpu_of_turns(scheduler: Scheduler, count: int) -> list[float]:
    """Processor time of each turn: other processes of the machine do not count."""
    found = []
    for _ in range(count):
        start = time.thread_time()
        scheduler.turn()
        found.append(time.thread_time() - start)
    return sorted(found)
