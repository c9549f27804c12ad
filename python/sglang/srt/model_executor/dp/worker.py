"""The worker of one replica under data-parallel attention: it steps when any replica does."""

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from sglang.srt.config.model import ModelSpec
from sglang.srt.core.step import StepPlan, StepResult
from sglang.srt.distributed import _shm
from sglang.srt.distributed.groups import ParallelGroup
from sglang.srt.distributed.shm_collectives import ShmCollectives
from sglang.srt.errors import ConfigError, EngineError
from sglang.srt.kv_pool.base import KVPool
from sglang.srt.kv_pool.memory import PrivateMemory
from sglang.srt.layers.parameter import ExpertRanks
from sglang.srt.model_executor.build import Allocate, build_runner
from sglang.srt.model_executor.dp.lockstep import Lockstep
from sglang.srt.model_executor.grammar_rows import MatcherSource
from sglang.srt.model_executor.options import WorkerOptions
from sglang.srt.model_executor.worker import MAX_QUEUED, StepResults, prepare_thread
from sglang.srt.models.base import LayerHook

LOG = logging.getLogger(__name__)
BLAME_S = 1.0
"""How long a replica whose round was given up waits to be told to end: the one that failed says why in its log."""


class LockstepExecutor(Protocol):
    """What runs a step on the worker's thread, or takes part in the others'."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step to its end."""
        ...

    def idle(self) -> None:
        """The same forward pass without rows."""
        ...


class LockstepWorker:
    """A ComputeWorker whose compute thread joins every round of the engine.

    In a round it runs the next step that was submitted here, or an empty one. So schedulers plan as if they were alone,
    and a replica without requests costs the others one short wait a layer.
    """

    def __init__(
        self, executor: LockstepExecutor, lockstep: Lockstep, *, threads: int, cores: Collection[int] = ()
    ) -> None:
        """`threads` and `cores` as ThreadWorker's."""
        self._executor = executor
        self._lockstep = lockstep
        self._threads = threads
        self._cores = tuple(cores)
        self._jobs: deque[StepPlan | Callable[[], object]] = deque()
        self._running = 0
        self._results = StepResults()
        self._closed = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self._thread.start()

    def submit(self, plan: StepPlan) -> None:
        """Queue a step and call a round. Raises EngineError on a closed worker or an absurd backlog."""
        if self._closed:
            raise EngineError(f"step {plan.step_id} was submitted to a closed worker")
        if len(self._jobs) >= MAX_QUEUED:
            raise EngineError(f"step {plan.step_id} was submitted while {MAX_QUEUED} steps wait")
        self._running += 1
        self._put(plan)

    def call(self, function: Callable[[], object]) -> None:
        """As ThreadWorker.call; it takes a round of its own."""
        if not self._closed:
            self._put(function)

    def poll(self) -> list[StepResult]:
        """Finished steps; once they are taken, EngineError with the traceback of the step that failed."""
        results = self._results.poll()
        self._running -= len(results)
        return results

    def fileno(self) -> int:
        return self._results.fileno()

    def close(self) -> None:
        """Leave the rounds: without steps of its own from now on, and for good once every replica has left."""
        if self._closed:
            return
        self._closed = True
        self._stopping.set()
        if self._running:
            LOG.error("closed with %d steps in flight; %s", self._running, self._lockstep.progress())
        if self._results.failed:
            self._lockstep.give_up()
        else:
            self._lockstep.rounds.leave()
        self._thread.join()
        self._results.close()

    def _put(self, job: StepPlan | Callable[[], object]) -> None:
        """Into the queue first: a round that is called afterwards finds it there (see rounds.cpp)."""
        self._jobs.append(job)
        self._lockstep.rounds.call()

    def _run(self) -> None:
        """The thread. Whatever goes wrong in it belongs to poll's caller, so nothing may escape."""
        try:
            prepare_thread(self._threads, self._cores)
            self._rounds()
            if not self._stopping.wait(BLAME_S):
                self._results.fail("another replica gave up, or died; its own log says why")
        except BaseException:  # noqa: BLE001
            self._results.fail(traceback.format_exc())
            self._lockstep.give_up()

    def _rounds(self) -> None:
        """Join every round until there are no more: all have left, or one gave up, in a round or between two."""
        with suppress(_shm.Aborted):
            while self._lockstep.rounds.join():
                self._round()

    def _take(self) -> StepPlan | Callable[[], object] | None:
        """What to do in this round; what else waits gets a round of its own. At the end, what waits is dropped."""
        if self._stopping.is_set() or not self._jobs:
            return None
        job = self._jobs.popleft()
        if self._jobs:
            self._lockstep.rounds.call()
        return job

    def _round(self) -> None:
        job = self._take()
        if isinstance(job, StepPlan):
            result = self._executor.execute(job)
            if not job.rows:
                self._executor.idle()
            self._results.finish(result)
            return
        self._executor.idle()
        if job is not None:
            job()


def build_dp_worker(
    model_path: Path,
    spec: ModelSpec,
    options: WorkerOptions,
    lockstep: Lockstep,
    hook: LayerHook,
    *,
    allocate: Allocate = PrivateMemory,
    matchers: MatcherSource | None = None,
) -> tuple[LockstepWorker, KVPool]:
    """As build.build_worker, for one replica of those in `lockstep`. Raises ConfigError for a model without experts."""
    if spec.moe is None:
        raise ConfigError(f"--enable-dp-attention: {spec.architecture} has no experts to share; use --dp-size alone")
    collectives = ShmCollectives(lockstep.group, lockstep.rank, lockstep.size)
    ranks = ExpertRanks(ParallelGroup(lockstep.rank, lockstep.size), collectives)
    runner, pool = build_runner(model_path, spec, options, hook, allocate, matchers, expert_ranks=ranks)
    return LockstepWorker(runner, lockstep, threads=options.threads, cores=options.cores), pool
