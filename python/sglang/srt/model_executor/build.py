"""From a model folder to a running worker and its KV pool."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from sglang.srt.config.hardware import detect
from sglang.srt.config.model import ModelSpec
from sglang.srt.config.model_digest import dummy_digest, model_digest
from sglang.srt.core.layout import KVLayout, ShardLayout
from sglang.srt.distributed.collectives import Collectives, SoloCollectives
from sglang.srt.distributed.groups import ParallelGroup
from sglang.srt.errors import ConfigError
from sglang.srt.kv_pool.base import TORCH_DTYPES, KVPool, Region
from sglang.srt.kv_pool.layout import kv_layout
from sglang.srt.kv_pool.memory import PrivateMemory
from sglang.srt.kv_pool.open import open_pool
from sglang.srt.layers.attention.base import AttentionBackend
from sglang.srt.layers.attention.open import open_attention
from sglang.srt.layers.parameter import ExpertRanks, LayerContext
from sglang.srt.model_executor.follower import FollowerRunner
from sglang.srt.model_executor.grammar_rows import MatcherSource
from sglang.srt.model_executor.hooks import NullHook
from sglang.srt.model_executor.memory_budget import pages_that_fit
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.model_executor.options import Dtype, WorkerOptions
from sglang.srt.model_executor.row_table import RowTable
from sglang.srt.model_executor.sampling_state import SamplingState
from sglang.srt.model_executor.step_graph import NotRecordable, StepGraph
from sglang.srt.model_executor.worker import ThreadWorker
from sglang.srt.models.base import CausalLM, LayerHook
from sglang.srt.models.progress import ByteProgress
from sglang.srt.models.registry import build_model
from sglang.srt.models.weights import load_dummy, load_model

LOG = logging.getLogger(__name__)

Allocate = Callable[[int, Callable[[int], None]], Region]
"""(bytes, progress) -> zeroed memory for the KV pool."""


def compute_dtype(spec: ModelSpec, dtype: Dtype) -> Literal["float32", "bfloat16"]:
    """What `--dtype` comes to; auto is the checkpoint's, with bfloat16 in place of float16, which CPUs are slow at."""
    if dtype != "auto":
        return dtype
    return "float32" if spec.dtype == "float32" else "bfloat16"


def engine_layout(model_path: Path, spec: ModelSpec, options: WorkerOptions) -> KVLayout:
    """The KV layout that an engine of these options has. Reads headers only, so a front end may ask too."""
    dummy = options.load_format == "dummy"
    digest = dummy_digest(spec, options.random_seed) if dummy else model_digest(model_path, spec, options.load_format)
    if options.quantization != "none":
        digest = f"{digest}-{options.quantization}"  # other weights make other KV
    dtype = compute_dtype(spec, options.dtype) if options.kv_cache_dtype == "auto" else options.kv_cache_dtype
    return kv_layout(spec, page_size=options.page_size, dtype=dtype, model=digest)


class LoadedRank(NamedTuple):
    """One rank's weights, and what its pool and rows are made from once the number of pages is known."""

    spec: ModelSpec
    options: WorkerOptions
    layout: KVLayout
    max_context: int
    group: ParallelGroup
    collectives: Collectives
    model: CausalLM
    shares_experts: bool = False
    """With ranks other than those of `group`."""

    def shard(self, pages: int) -> ShardLayout:
        """The layout of all ranks' pools."""
        return ShardLayout(kv=self.layout, tp_size=self.group.size, num_pages=pages)


def build_worker(
    model_path: Path,
    spec: ModelSpec,
    options: WorkerOptions,
    hook: LayerHook,
    allocate: Allocate = PrivateMemory,
    matchers: MatcherSource | None = None,
) -> tuple[ThreadWorker, KVPool]:
    """Load the weights, size and touch the KV pool, start the compute thread.

    `hook` hears of every layer of every step, on the compute thread. Raises CheckpointError for a folder that does not
    hold this model, ConfigError where memory does not suffice or options do not fit together.
    """
    runner, pool = build_runner(model_path, spec, options, hook, allocate, matchers)
    return ThreadWorker(runner, threads=options.threads, cores=options.cores), pool


def build_runner(
    model_path: Path,
    spec: ModelSpec,
    options: WorkerOptions,
    hook: LayerHook,
    allocate: Allocate = PrivateMemory,
    matchers: MatcherSource | None = None,
    expert_ranks: ExpertRanks | None = None,
) -> tuple[ModelRunner, KVPool]:
    """What build_worker puts into a thread."""
    loaded = load_rank(model_path, spec, options, ParallelGroup(), SoloCollectives(), expert_ranks)
    pool = make_pool(loaded, pages_for(loaded), allocate)
    return make_runner(loaded, pool, hook, matchers), pool


def load_rank(
    model_path: Path,
    spec: ModelSpec,
    options: WorkerOptions,
    group: ParallelGroup,
    collectives: Collectives,
    expert_ranks: ExpertRanks | None = None,
) -> LoadedRank:
    """Read this rank's share of the weights. `expert_ranks`: who divides the experts, where that is not `group`.

    Raises as build_worker does.
    """
    layout = engine_layout(model_path, spec, options)
    max_context = options.max_context or spec.max_positions
    if max_context > spec.max_positions:
        raise ConfigError(
            f"--context-length {max_context} exceeds the model's {spec.max_positions}; "
            f"""--json-model-override-args '{{"max_position_embeddings": {max_context}}}' insists"""
        )
    dtype = TORCH_DTYPES[compute_dtype(spec, options.dtype)]
    if options.quantization == "w8a16" and dtype is not torch.bfloat16:
        raise ConfigError(
            "--quantization w8a16 computes in bfloat16: give --dtype bfloat16 or leave the quantization out"
        )
    bits = 8 if options.quantization == "w8a16" else 16
    model = build_model(spec, LayerContext(dtype, group, collectives, options.ep_size, expert_ranks, bits))
    if options.load_format == "dummy":
        load_dummy(model, options.random_seed)
    else:
        load_model(model, model_path, spec, options.load_format)
    return LoadedRank(spec, options, layout, max_context, group, collectives, model, expert_ranks is not None)


def pages_for(loaded: LoadedRank) -> int:
    """Pages of each rank's pool. The ranks of a CPU engine share the machine's memory, so they count together."""
    options, one = loaded.options, loaded.shard(1)
    return pages_that_fit(
        page_bytes=sum(one.region_bytes(rank) for rank in range(one.tp_size)),
        page_size=loaded.layout.page_size,
        max_total_tokens=options.max_total_tokens,
        mem_fraction=options.mem_fraction_static,
        available=detect().memory_bytes,
        useful_tokens=options.max_running_requests * (loaded.max_context + loaded.layout.page_size - 1),
    )


def make_pool(loaded: LoadedRank, pages: int, allocate: Allocate) -> KVPool:
    """This rank's pool, touched."""
    shard, rank = loaded.shard(pages), loaded.group.rank
    progress = ByteProgress("touch KV memory", shard.region_bytes(rank))
    return open_pool(shard, rank, allocate(shard.region_bytes(rank), progress.advance))


def make_backend(loaded: LoadedRank, pool: KVPool) -> AttentionBackend:
    """Attention over this rank's heads."""
    options = loaded.options
    return open_attention(
        loaded.spec,
        pool,
        loaded.model.latent_heads(),
        loaded.group.size,
        options.attention_backend,
        dtype=TORCH_DTYPES[compute_dtype(loaded.spec, options.dtype)],
    )


def make_table(loaded: LoadedRank, pool: KVPool) -> RowTable:
    """The rows, of which every rank keeps the same."""
    return RowTable(
        max_rows=loaded.options.max_running_requests,
        max_context=loaded.max_context,
        page_size=loaded.layout.page_size,
        num_pages=pool.layout.num_pages,
    )


def make_runner(
    loaded: LoadedRank, pool: KVPool, hook: LayerHook, matchers: MatcherSource | None = None
) -> ModelRunner:
    """The runner of the only rank, or of the lead."""
    options = loaded.options
    state = SamplingState(options.max_running_requests, loaded.spec.vocab_size, matchers)
    backend = make_backend(loaded, pool)
    return ModelRunner(
        loaded.model,
        backend,
        hook,
        make_table(loaded, pool),
        state,
        pooling=options.pooling,
        collectives=loaded.collectives,
        graph=make_graph(loaded, backend, hook),
    )


def make_graph(loaded: LoadedRank, backend: AttentionBackend, hook: LayerHook) -> StepGraph | None:
    """The recorded decode step, where options and model have one; the log says why there is none."""
    options = loaded.options
    rows = options.max_running_requests if options.graph_rows is None else options.graph_rows
    if not rows or options.pooling != "none" or not isinstance(hook, NullHook):
        return None
    if loaded.group.size > 1 or loaded.shares_experts:
        LOG.info("decode steps are computed call by call: ranks exchange tensors in the middle of a step")
        return None
    try:
        graph = StepGraph(loaded.model, backend, min(rows, options.max_running_requests))
    except NotRecordable as reason:
        LOG.info("decode steps are computed call by call: %s", reason)
        return None
    LOG.info("decode steps are recorded: %s", graph)
    return graph


def make_follower(loaded: LoadedRank, pool: KVPool) -> FollowerRunner:
    """The runner of any other rank."""
    return FollowerRunner(
        loaded.model,
        make_backend(loaded, pool),
        make_table(loaded, pool),
        loaded.collectives,
        vocab_size=loaded.spec.vocab_size,
        pooling=loaded.options.pooling,
    )
