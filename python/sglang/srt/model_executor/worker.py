"""A worker in a thread of its own, so that planning goes on while a step computes."""

import os
import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol

import torch

from sglang.srt.core.ports import Worker
from sglang.srt.core.step import StepPlan, StepResult
from sglang.srt.errors import EngineError

MAX_QUEUED = 8
"""Steps that may wait; the scheduler keeps two in flight, so more than this is a bug and not load."""


class StepExecutor(Protocol):
    """What runs a step, on the worker's thread."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step to its end."""
        ...


class ComputeWorker(Worker, Protocol):
    """A worker whose compute thread can be borrowed between two steps."""

    def call(self, function: Callable[[], object]) -> None:
        """Run `function`, which must not raise, on the compute thread, after the steps submitted so far."""
        ...


class StepResults:
    """What a compute thread has finished, for the scheduler's thread.

    The descriptor is an eventfd that is signalled when the first result lands in an empty list, and cleared when poll
    has taken everything; after a failure it stays readable.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: deque[StepResult] = deque()
        self._failure = ""
        self._closed = False
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def finish(self, result: StepResult) -> None:
        """A step is over."""
        with self._lock:
            if not self._results:
                os.eventfd_write(self._event, 1)
            self._results.append(result)

    def fail(self, text: str) -> None:
        """No step will end any more, because of `text`."""
        with self._lock:
            self._failure = text
            os.eventfd_write(self._event, 1)

    @property
    def failed(self) -> bool:
        """Whether the compute thread has failed."""
        return bool(self._failure)

    def poll(self) -> list[StepResult]:
        """Finished steps; once they are taken, EngineError with the text of the failure."""
        with self._lock:
            results = list(self._results)
            self._results.clear()
            if not results and self._failure:
                raise EngineError(f"the worker died:\n{self._failure}")
            if results and not self._failure and not self._closed:
                os.eventfd_read(self._event)
        return results

    def fileno(self) -> int:
        """Readable while poll() would return something or raise."""
        return self._event

    def close(self) -> None:
        """Nothing will finish any more."""
        self._closed = True
        os.close(self._event)


def prepare_thread(threads: int, cores: Collection[int]) -> None:
    """Pinning and thread counts are per thread: OpenMP's helpers and the kernels' inherit both from here."""
    if cores:
        os.sched_setaffinity(0, cores)
    torch.set_num_threads(threads)


class ThreadWorker:
    """A ComputeWorker of one rank."""

    def __init__(self, executor: StepExecutor, *, threads: int, cores: Collection[int] = ()) -> None:
        """`threads`: torch's threads for each operation; `cores`: where they are pinned, all where empty."""
        self._executor = executor
        self._threads = threads
        self._cores = tuple(cores)
        self._plans: queue.Queue[StepPlan | Callable[[], object] | None] = queue.Queue()
        self._results = StepResults()
        self._closed = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._thread.start()

    def submit(self, plan: StepPlan) -> None:
        """Queue a step. Raises EngineError on a closed worker or an absurd backlog; a dead one answers through poll."""
        if self._closed:
            raise EngineError(f"step {plan.step_id} was submitted to a closed worker")
        if self._plans.qsize() >= MAX_QUEUED:
            raise EngineError(f"step {plan.step_id} was submitted while {MAX_QUEUED} steps wait")
        self._plans.put(plan)

    def call(self, function: Callable[[], object]) -> None:
        """Run `function`, which must not raise, on the compute thread, after the steps submitted so far."""
        if not self._closed:
            self._plans.put(function)

    def poll(self) -> list[StepResult]:
        """Finished steps; once they are taken, EngineError with the traceback of the step that failed."""
        return self._results.poll()

    def fileno(self) -> int:
        return self._results.fileno()

    def close(self) -> None:
        """Stop after the running step; steps that wait are dropped."""
        if self._closed:
            return
        self._closed = True
        self._stopping.set()
        self._plans.put(None)
        self._thread.join()
        self._results.close()

    def _run(self) -> None:
        """The thread. Whatever goes wrong in it belongs to poll's caller, so nothing may escape."""
        try:
            prepare_thread(self._threads, self._cores)
            while (plan := self._plans.get()) is not None and not self._stopping.is_set():
                if isinstance(plan, StepPlan):
                    self._results.finish(self._executor.execute(plan))
                else:
                    plan()
        except BaseException:  # noqa: BLE001
            self._results.fail(traceback.format_exc())
