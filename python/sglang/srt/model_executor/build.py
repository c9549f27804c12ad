"""From a model folder to a running worker and its KV pool."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from sglang.srt.config.hardware import detect
from sglang.srt.config.model import ModelSpec
from sglang.srt.config.model_digest import dummy_digest, model_digest
from sglang.srt.core.layout import KVLayout, ShardLayout
from sglang.srt.distributed.collectives import SoloCollectives
from sglang.srt.distributed.groups import ParallelGroup
from sglang.srt.errors import ConfigError
from sglang.srt.kv_pool.base import TORCH_DTYPES, KVPool, Region
from sglang.srt.kv_pool.layout import kv_layout
from sglang.srt.kv_pool.memory import PrivateMemory
from sglang.srt.kv_pool.open import open_pool
from sglang.srt.layers.attention.open import open_attention
from sglang.srt.layers.parameter import LayerContext
from sglang.srt.model_executor.grammar_rows import MatcherSource
from sglang.srt.model_executor.memory_budget import pages_that_fit
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.model_executor.row_table import RowTable
from sglang.srt.model_executor.sampling_state import SamplingState
from sglang.srt.model_executor.worker import ThreadWorker
from sglang.srt.models.base import CausalLM, LayerHook
from sglang.srt.models.progress import ByteProgress
from sglang.srt.models.registry import build_model
from sglang.srt.models.weights import load_dummy, load_model

Dtype = Literal["auto", "float32", "bfloat16"]
Allocate = Callable[[int, Callable[[int], None]], Region]
"""(bytes, progress) -> zeroed memory for the KV pool."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the worker of one rank is built from; ServerConfig's fields of the same names."""

    dtype: Dtype = "auto"
    kv_cache_dtype: Dtype = "auto"
    """auto: the weights' dtype."""
    load_format: Literal["auto", "safetensors", "dummy"] = "auto"
    page_size: int = 16
    max_total_tokens: int = 0
    mem_fraction_static: float = 0.3
    max_running_requests: int = 64
    max_context: int = 0
    """Tokens a row can hold; 0: the model's own limit."""
    threads: int = 1
    cores: tuple[int, ...] = ()
    random_seed: int = 0
    """Of dummy weights."""
    embedding: bool = False
    """Answer with hidden states in place of tokens."""


def compute_dtype(spec: ModelSpec, dtype: Dtype) -> Literal["float32", "bfloat16"]:
    """What `--dtype` comes to; auto is the checkpoint's, with bfloat16 in place of float16, which CPUs are slow at."""
    if dtype != "auto":
        return dtype
    return "float32" if spec.dtype == "float32" else "bfloat16"


def engine_layout(model_path: Path, spec: ModelSpec, options: WorkerOptions) -> KVLayout:
    """The KV layout that an engine of these options has. Reads headers only, so a front end may ask too."""
    dummy = options.load_format == "dummy"
    digest = dummy_digest(spec, options.random_seed) if dummy else model_digest(model_path, spec)
    dtype = compute_dtype(spec, options.dtype) if options.kv_cache_dtype == "auto" else options.kv_cache_dtype
    return kv_layout(spec, page_size=options.page_size, dtype=dtype, model=digest)


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
) -> tuple[ModelRunner, KVPool]:
    """What build_worker puts into a thread."""
    layout = engine_layout(model_path, spec, options)
    max_context = options.max_context or spec.max_positions
    if max_context > spec.max_positions:
        raise ConfigError(f"--context-length {max_context} exceeds the model's {spec.max_positions}")
    model = _load(model_path, spec, options)
    pool = _pool(layout, options, max_context, allocate)
    table = RowTable(
        max_rows=options.max_running_requests,
        max_context=max_context,
        page_size=options.page_size,
        num_pages=pool.layout.num_pages,
    )
    backend = open_attention(spec, pool, model.latent_heads())
    state = SamplingState(options.max_running_requests, spec.vocab_size, matchers)
    return ModelRunner(model, backend, hook, table, state, embedding=options.embedding), pool


def _load(model_path: Path, spec: ModelSpec, options: WorkerOptions) -> CausalLM:
    dtype = TORCH_DTYPES[compute_dtype(spec, options.dtype)]
    model = build_model(spec, LayerContext(dtype, ParallelGroup(), SoloCollectives()))
    if options.load_format == "dummy":
        load_dummy(model, options.random_seed)
    else:
        load_model(model, model_path)
    return model


def _pool(layout: KVLayout, options: WorkerOptions, max_context: int, allocate: Allocate) -> KVPool:
    one = ShardLayout(kv=layout, tp_size=1, num_pages=1)
    pages = pages_that_fit(
        page_bytes=one.region_bytes(0),
        page_size=layout.page_size,
        max_total_tokens=options.max_total_tokens,
        mem_fraction=options.mem_fraction_static,
        available=detect().memory_bytes,
        useful_tokens=options.max_running_requests * (max_context + layout.page_size - 1),
    )
    shard = ShardLayout(kv=layout, tp_size=1, num_pages=pages)
    progress = ByteProgress("touch KV memory", shard.region_bytes(0))
    return open_pool(shard, 0, allocate(shard.region_bytes(0), progress.advance))
