"""The thread around a runner."""

import select
import threading
import time

import pytest
import torch

from sglang.srt.core.step import StepPlan, StepResult
from sglang.srt.errors import EngineError
from sglang.srt.model_executor.worker import MAX_QUEUED, ThreadWorker


class Executor:
    """Answers each plan; waits for `gate`, fails at step `bad`."""

    def __init__(self, bad: int = -1) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.bad = bad
        self.done: list[int] = []
        self.threads = 0

    def execute(self, plan: StepPlan) -> StepResult:
        """One step."""
        assert self.gate.wait(10)
        self.threads = torch.get_num_threads()
        if plan.step_id == self.bad:
            raise ZeroDivisionError("the step's own words")
        self.done.append(plan.step_id)
        return StepResult(step_id=plan.step_id, sampled=(), started_ns=0, forward_ended_ns=0, ended_ns=0)


def plan(step: int) -> StepPlan:
    """An empty plan."""
    return StepPlan(step_id=step, rows=())


def readable(worker: ThreadWorker, seconds: float = 10.0) -> bool:
    """Whether the descriptor wakes a poller in time."""
    return bool(select.select([worker], [], [], seconds)[0])


def collect(worker: ThreadWorker, count: int) -> list[int]:
    """Step ids of `count` results."""
    found: list[int] = []
    while len(found) < count:
        assert readable(worker)
        found += [result.step_id for result in worker.poll()]
    return found


def test_results_in_order_and_a_quiet_descriptor() -> None:
    worker = ThreadWorker(Executor(), threads=1)
    assert worker.poll() == [] and not readable(worker, 0)
    for step in range(5):
        worker.submit(plan(step))
    assert collect(worker, 5) == [0, 1, 2, 3, 4]
    assert worker.poll() == [] and not readable(worker, 0)
    worker.submit(plan(9))
    assert collect(worker, 1) == [9]
    worker.close()


def test_submit_does_not_wait_and_a_backlog_is_refused() -> None:
    executor = Executor()
    executor.gate.clear()
    worker = ThreadWorker(executor, threads=1)
    started = time.monotonic()
    with pytest.raises(EngineError, match="steps wait"):
        for step in range(MAX_QUEUED + 2):
            worker.submit(plan(step))
    assert time.monotonic() - started < 5, "it waited for the gate"
    executor.gate.set()
    worker.close()


def test_a_failed_step_comes_after_the_results_before_it_and_stays() -> None:
    worker = ThreadWorker(Executor(bad=2), threads=1)
    for step in range(4):
        worker.submit(plan(step))
    assert collect(worker, 2) == [0, 1]
    for _ in range(2):
        assert readable(worker)
        with pytest.raises(EngineError, match=r"(?s)Traceback.*ZeroDivisionError: the step's own words"):
            worker.poll()
    worker.close()


def test_close_drops_what_waits_and_may_be_repeated() -> None:
    executor = Executor()
    executor.gate.clear()
    worker = ThreadWorker(executor, threads=1)
    for step in range(3):
        worker.submit(plan(step))
    closing = threading.Thread(target=worker.close)
    closing.start()
    while not worker._stopping.is_set():
        time.sleep(0.001)
    executor.gate.set()
    closing.join(10)
    worker.close()
    assert executor.done in ([], [0])
    with pytest.raises(EngineError, match="closed worker"):
        worker.submit(plan(3))


def test_thread_count_is_the_workers_own() -> None:
    executor = Executor()
    before = torch.get_num_threads()
    worker = ThreadWorker(executor, threads=3)
    worker.submit(plan(0))
    collect(worker, 1)
    worker.close()
    assert executor.threads == 3
    torch.set_num_threads(before)
