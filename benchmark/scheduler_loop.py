"""What one step costs the scheduler's loop: `python benchmark/scheduler_loop.py`.

A worker answers at once, so that all time is the loop's: hearing, planning, taking results, telling the frontend. The
message codec is included, since the real channel pays it in the same thread.
"""

import argparse
import gc
import time
from collections import deque

from sglang.srt.core.clock import MonotonicClock
from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.step import SampledToken, StepPlan, StepResult
from sglang.srt.core.trace import NullTracer
from sglang.srt.ipc.local_channel import LocalChannel
from sglang.srt.managers.limits import Limits, PolicyName
from sglang.srt.managers.role import UnifiedRole
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.cache_manager import CacheManager
from sglang.srt.messages.codec import Codec
from sglang.srt.messages.frontend import Generate, ToFrontend, ToScheduler

PROMPT = 64
OUTPUT = 100_000
RUNS = 20


class InstantWorker:
    """Samples token 7 everywhere."""

    def __init__(self) -> None:
        self.results: deque[StepResult] = deque()
        self.steps = 0
        self.tokens = [SampledToken(slot=slot, token=7) for slot in range(4096)]

    def submit(self, plan: StepPlan) -> None:
        self.steps += 1
        sampled = tuple([self.tokens[row.slot] for row in plan.rows if row.sample])
        result = StepResult(step_id=plan.step_id, sampled=sampled, started_ns=0, forward_ended_ns=1, ended_ns=1)
        self.results.append(result)

    def poll(self) -> list[StepResult]:
        return [self.results.popleft()] if self.results else []

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        pass


class NoWaiter:
    """Never sleeps."""

    def wait(self, seconds: float) -> None:
        pass


def build(running: int, policy: PolicyName) -> tuple[Scheduler, InstantWorker, deque[ToScheduler], deque[ToFrontend]]:
    """A scheduler with room for `running` endless requests."""
    to: deque[ToScheduler] = deque()
    back: deque[ToFrontend] = deque()
    worker = InstantWorker()
    scheduler = Scheduler(
        limits=Limits(
            max_running=running, max_queued=1 << 30, chunk=4096, max_prefill=1 << 20, context=OUTPUT, layers=30,
            policy=policy,
        ),
        cache=CacheManager(num_pages=1 << 17, page_size=16),
        worker=worker,
        role=UnifiedRole(),
        channel=LocalChannel(to, back),
        waiter=NoWaiter(),
        clock=MonotonicClock(),
        tracer=NullTracer(),
    )  # fmt: skip
    return scheduler, worker, to, back


def measure(running: int, waiting: int, steps: int, policy: PolicyName = "fcfs") -> float:
    """Milliseconds of CPU time a step of `running` rows with `waiting` requests behind; the least disturbed run."""
    scheduler, worker, to, back = build(running, policy)
    codec: Codec[ToFrontend] = Codec(ToFrontend)
    sampling = SamplingParams(max_new_tokens=OUTPUT, temperature=0.0)
    for number in range(running + waiting):
        tokens = tuple(range(number, number + PROMPT))
        to.append(Generate(rid=f"r{number}", token_ids=tokens, sampling=sampling))
        if number == running:
            for _ in range(60):
                scheduler.turn()
    for _ in range(60):
        scheduler.turn()
    back.clear()
    gc.collect()
    gc.freeze()
    first, best = worker.steps, float("inf")
    for _ in range(RUNS):
        started, first = time.process_time(), worker.steps
        while worker.steps < first + steps:
            scheduler.turn()
            scheduler._patience()
            while back:
                codec.encode(back.popleft())
        best = min(best, (time.process_time() - started) / steps)
    gc.unfreeze()
    return best * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--running", type=int, default=64)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 100, 1000, 10_000])
    parser.add_argument("--policies", nargs="+", default=["fcfs", "lpm", "priority"])
    arguments = parser.parse_args()
    for policy in arguments.policies:
        for waiting in arguments.waiting:
            cost = measure(arguments.running, waiting, arguments.steps, policy)
            print(f"{policy}: {arguments.running} running, {waiting} waiting: {cost:.3f} ms a step")


if __name__ == "__main__":
    main()
