"""A worker of several ranks: rank 0 in this process's compute thread, the others in processes of their own."""

import logging
import select
import time
from collections.abc import Callable
from pathlib import Path

from sglang.srt.config.model import ModelSpec
from sglang.srt.core.step import StepPlan, StepResult
from sglang.srt.distributed.groups import ParallelGroup
from sglang.srt.errors import EngineError
from sglang.srt.kv_pool.base import KVPool
from sglang.srt.kv_pool.memory import PrivateMemory
from sglang.srt.kv_pool.shareable import SharedMemory
from sglang.srt.model_executor.build import Allocate, load_rank, make_pool, make_runner, pages_for
from sglang.srt.model_executor.grammar_rows import MatcherSource
from sglang.srt.model_executor.options import WorkerOptions
from sglang.srt.model_executor.tp.messages import PlanCodec
from sglang.srt.model_executor.tp.ranks import Ranks, cores_of
from sglang.srt.model_executor.worker import ThreadWorker
from sglang.srt.models.base import LayerHook

LOG = logging.getLogger(__name__)
BLAME_S = 0.5
"""When the lead's own step fails, how long another rank may take to say that the fault was its."""


class TPWorker:
    """A core.ports.Worker. Every rank gets every plan; the lead alone samples and answers.

    A rank that dies or fails shows in `poll`. One that hangs shows as a step that does not end, which the scheduler
    notices; `close` then logs where each rank is.
    """

    def __init__(self, local: ThreadWorker, ranks: Ranks) -> None:
        self._local = local
        self._ranks = ranks
        self._codec = PlanCodec()
        self._running = 0
        self._closed = False
        self._poller = select.epoll()
        for descriptor in (local.fileno(), *ranks.descriptors()):
            self._poller.register(descriptor, select.EPOLLIN)

    def submit(self, plan: StepPlan) -> None:
        """Queue a step on every rank. Raises EngineError where a rank has stopped reading."""
        if not self._ranks.exchange.publish(self._codec.encode(plan)):
            raise EngineError(f"step {plan.step_id} finds no room: a rank hangs\n{self._ranks.stacks()}")
        self._local.submit(plan)
        self._running += 1

    def call(self, function: Callable[[], object]) -> None:
        """As ThreadWorker.call, on the lead's compute thread."""
        self._local.call(function)

    def poll(self) -> list[StepResult]:
        """Finished steps. Raises EngineError with the traceback of whichever rank failed first."""
        self._ranks.check()
        try:
            results = self._local.poll()
        except EngineError:
            self._wait_for_blame()
            raise
        self._running -= len(results)
        return results

    def fileno(self) -> int:
        return self._poller.fileno()

    def close(self) -> None:
        """End every rank, also in the middle of a step."""
        if self._closed:
            return
        self._closed = True
        if self._running:
            LOG.error("closed with %d steps in flight; %s", self._running, self._ranks.stacks())
        self._ranks.exchange.give_up()
        self._local.close()
        self._ranks.close()
        self._poller.close()

    def _wait_for_blame(self) -> None:
        """The lead's step also fails when another rank gives the exchange up, or dies in the middle of it."""
        end = time.monotonic() + BLAME_S
        while time.monotonic() < end:
            self._ranks.check()
            time.sleep(0.02)


def build_tp_worker(
    model_path: Path,
    spec: ModelSpec,
    options: WorkerOptions,
    size: int,
    hook: LayerHook,
    *,
    allocate: Allocate = PrivateMemory,
    matchers: MatcherSource | None = None,
    log_level: str = "info",
) -> tuple[TPWorker, KVPool, list[SharedMemory]]:
    """As build.build_worker, with `size` ranks. Also returns the pools of ranks 1 and up, mapped into this process.

    `hook` hears of a layer when it is complete on every rank.
    """
    ranks = Ranks(model_path, options, size, log_level)
    try:
        loaded = load_rank(model_path, spec, options, ParallelGroup(0, size), ranks.exchange.collectives)
        ranks.wait_loaded()
        pages = pages_for(loaded)
        ranks.allocate(pages)
        pool = make_pool(loaded, pages, allocate)
        mapped = ranks.pools()
        runner = make_runner(loaded, pool, hook, matchers)
        local = ThreadWorker(runner, threads=options.threads, cores=cores_of(0, size, options.cores))
        return TPWorker(local, ranks), pool, mapped
    except BaseException:
        ranks.close()
        raise
