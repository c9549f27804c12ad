"""The workers of an engine replica: one rank in a thread, or several of which all but the first are processes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sglang.srt.config.model import ModelSpec
from sglang.srt.config.pooling import Pooling, read_pooling
from sglang.srt.config.server import ServerConfig
from sglang.srt.disaggregation.messenger.fabric import PoolMemory
from sglang.srt.kv_pool.base import KVPool, Region
from sglang.srt.kv_pool.memory import PrivateMemory
from sglang.srt.kv_pool.shareable import SharedMemory, shared_pool
from sglang.srt.model_executor.build import build_worker
from sglang.srt.model_executor.dp.lockstep import Lockstep
from sglang.srt.model_executor.dp.worker import build_dp_worker
from sglang.srt.model_executor.grammar_rows import MatcherSource
from sglang.srt.model_executor.options import WorkerOptions
from sglang.srt.model_executor.tp.worker import build_tp_worker
from sglang.srt.model_executor.worker import ComputeWorker
from sglang.srt.models.base import LayerHook


@dataclass(frozen=True, slots=True)
class Workers:
    """The worker, the lead's pool, and what of all ranks' pools other processes share."""

    worker: ComputeWorker
    pool: KVPool
    own: SharedMemory | None
    """The lead's pool, where it is shared."""
    others: tuple[SharedMemory, ...]
    """Pools of ranks 1 and up, mapped here for as long as this object lives."""

    def memory(self) -> list[PoolMemory]:
        """Every rank's pool, for the one messenger that sends for all of them."""
        descriptor = -1 if self.own is None else self.own.fileno()
        lead = PoolMemory(self.pool.address, self.pool.nbytes, descriptor)
        return [lead, *(PoolMemory(other.address, other.nbytes, other.fileno()) for other in self.others)]


def pooling_of(config: ServerConfig) -> Pooling:
    """How this engine makes embeddings, where it does. Raises CheckpointError for a way that there is not."""
    return read_pooling(Path(config.model_path)) if config.is_embedding else "none"


def worker_options(config: ServerConfig) -> WorkerOptions:
    """The flags that concern the workers."""
    return WorkerOptions(
        dtype=config.dtype,
        kv_cache_dtype=config.kv_cache_dtype,
        load_format=config.load_format,
        quantization=config.quantization,
        attention_backend=config.attention_backend,
        graph_rows=0 if config.disable_cuda_graph else config.cuda_graph_max_bs or None,
        page_size=config.page_size,
        max_total_tokens=config.max_total_tokens,
        mem_fraction_static=config.mem_fraction_static,
        max_running_requests=config.max_running_requests,
        max_context=config.context_length,
        threads=config.threads,
        cores=config.cpu_cores,
        random_seed=config.random_seed,
        pooling=pooling_of(config),
        ep_size=config.ep_size,
    )


def build_workers(
    config: ServerConfig,
    spec: ModelSpec,
    hook: LayerHook,
    matchers: MatcherSource | None,
    lockstep: Lockstep | None = None,
    *,
    shared: bool = False,
) -> Workers:
    """Load weights and allocate pools. `lockstep`: with the replicas that share the experts. `shared`: the lead's pool
    too is to be shareable.

    Raises as model_executor.build.build_worker does, and EngineError where another rank fails.
    """
    path, options = Path(config.model_path), worker_options(config)
    lead: list[SharedMemory] = []

    def allocate(nbytes: int, progress: Callable[[int], None]) -> Region:
        if not shared:
            return PrivateMemory(nbytes, progress)
        lead.append(shared_pool(nbytes, progress))
        return lead[0]

    if lockstep is not None:
        stepping, pool = build_dp_worker(path, spec, options, lockstep, hook, allocate=allocate, matchers=matchers)
        return Workers(stepping, pool, lead[0] if lead else None, ())
    if config.tp_size == 1:
        alone, pool = build_worker(path, spec, options, hook, allocate, matchers)
        return Workers(alone, pool, lead[0] if lead else None, ())
    worker, pool, others = build_tp_worker(
        path, spec, options, config.tp_size, hook, allocate=allocate, matchers=matchers, log_level=config.log_level
    )
    return Workers(worker, pool, lead[0] if lead else None, tuple(others))
