"""Workers that step together: what is submitted to one is computed there and takes the other along, to the end."""

import select
import threading
import time

import pytest

from sglang.srt.core.step import StepPlan, StepResult, StepRow
from sglang.srt.errors import EngineError
from sglang.srt.model_executor.dp import worker as module
from sglang.srt.model_executor.dp.lockstep import Lockstep, lockstep_memory
from sglang.srt.model_executor.dp.worker import LockstepWorker

ROWS = (StepRow(slot=0, start=0, length=1, tokens=(1,)),)


class Executor:
    """Its forward pass is one barrier, as an exchange of experts is."""

    def __init__(self, lockstep: Lockstep, fails_at: int = -1) -> None:
        self.steps: list[int] = []
        self.idles = 0
        self._lockstep = lockstep
        self._fails_at = fails_at

    def execute(self, plan: StepPlan) -> StepResult:
        if plan.step_id == self._fails_at:
            raise RuntimeError("injected")
        if plan.rows:
            self._lockstep.group.barrier()
        self.steps.append(plan.step_id)
        return StepResult(step_id=plan.step_id, sampled=(), started_ns=0, forward_ended_ns=0, ended_ns=0)

    def idle(self) -> None:
        self._lockstep.group.barrier()
        self.idles += 1


class Pair:
    """Two replicas in one process."""

    def __init__(self, fails_at: int = -1) -> None:
        memory = lockstep_memory(2)
        self.ends = ends = [Lockstep(memory, rank, 2) for rank in range(2)]
        self.executors = [Executor(ends[0], fails_at), Executor(ends[1])]
        self.workers = [LockstepWorker(e, end, threads=1) for e, end in zip(self.executors, ends, strict=True)]

    def take(self, rank: int, count: int) -> list[int]:
        """Step ids of that many results."""
        found: list[int] = []
        while len(found) < count:
            assert select.select([self.workers[rank].fileno()], [], [], 10)[0], "no result"
            found += [result.step_id for result in self.workers[rank].poll()]
        return found

    def close(self) -> None:
        """Both leave; neither can without the other."""
        leaving = threading.Thread(target=self.workers[0].close)
        leaving.start()
        self.workers[1].close()
        leaving.join(10)
        assert not leaving.is_alive()


def test_steps_of_either_take_the_other_along() -> None:
    """Two in flight on one, none on the other, then both; an empty plan and a borrowed thread are rounds too."""
    pair, borrowed = Pair(), threading.Event()
    found: list[int] = []
    for step in range(20):
        pair.workers[0].submit(StepPlan(step_id=step, rows=ROWS))
        if len(found) < step:
            found += pair.take(0, 1)
    found += pair.take(0, 20 - len(found)) if len(found) < 20 else []
    assert found == list(range(20))
    pair.workers[1].submit(StepPlan(step_id=0, rows=ROWS))
    pair.workers[0].submit(StepPlan(step_id=20, rows=()))
    pair.workers[0].call(borrowed.set)
    assert pair.take(1, 1) == [0] and pair.take(0, 1) == [20] and borrowed.wait(10)
    pair.close()
    first, second = pair.executors
    assert first.steps == list(range(21)) and second.steps == [0]
    assert len(first.steps) + first.idles - 1 == len(second.steps) + second.idles, "as many rounds on both"


def test_one_that_has_left_still_serves_the_other() -> None:
    pair = Pair()
    leaving = threading.Thread(target=pair.workers[0].close)
    leaving.start()
    time.sleep(0.05)
    for step in range(3):
        pair.workers[1].submit(StepPlan(step_id=step, rows=ROWS))
        assert pair.take(1, 1) == [step]
    assert leaving.is_alive()
    pair.workers[1].close()
    leaving.join(10)
    assert not leaving.is_alive() and pair.executors[0].idles == 3


def test_a_failure_is_told_with_its_traceback_and_the_other_says_whose_fault_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BLAME_S", 0.1)
    pair = Pair(fails_at=1)
    for step in range(2):
        pair.workers[0].submit(StepPlan(step_id=step, rows=ROWS))
    assert pair.take(0, 1) == [0]
    with pytest.raises(EngineError, match="injected"):
        pair.take(0, 1)
    with pytest.raises(EngineError, match="another replica gave up, or died; its own log says why"):
        pair.take(1, 1)
    pair.close()


def test_rounds_that_are_given_up_between_two_end_an_idle_worker_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the HTTP process gives up the rounds of a replica that was killed: no step can run here any more."""
    monkeypatch.setattr(module, "BLAME_S", 0.1)
    pair = Pair()
    pair.workers[0].submit(StepPlan(step_id=0, rows=ROWS))
    assert pair.take(0, 1) == [0]
    pair.ends[0].give_up()
    for rank in range(2):
        with pytest.raises(EngineError, match="another replica gave up, or died"):
            pair.take(rank, 1)
    pair.close()
