"""What a recipe's engines need and what its transfers cost: `python -m sglang.recipe_info recipe.yaml`.

Weights are counted on the engine's own model, built without memory. Where the recipe's model folder is not here, the
`config.json` beside the recipe takes its place.
"""

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from sglang.cluster.recipe import EngineSpec, find_recipe, load_recipe
from sglang.srt.config.model import ModelSpec, read_model_spec
from sglang.srt.config.replica import replica_config
from sglang.srt.config.server import ServerConfig
from sglang.srt.core.layout import ShardLayout
from sglang.srt.disaggregation.shardmap.plan import expected_weight, plan_copies
from sglang.srt.distributed.collectives import SoloCollectives
from sglang.srt.distributed.groups import ParallelGroup
from sglang.srt.errors import SglangError
from sglang.srt.kv_pool.base import TORCH_DTYPES
from sglang.srt.kv_pool.layout import kv_layout
from sglang.srt.layers.parameter import ExpertRanks, LayerContext
from sglang.srt.model_executor.build import compute_dtype
from sglang.srt.models.registry import build_model

GB = 1e9


def weight_bytes(spec: ModelSpec, config: ServerConfig, rank: int = 0) -> int:
    """Bytes of one rank's weights. Raises ConfigError where the model cannot be split so."""
    dtype = TORCH_DTYPES[compute_dtype(spec, config.dtype)]
    context = LayerContext(dtype, ParallelGroup(rank, config.tp_size), SoloCollectives(), config.ep_size)
    if config.enable_dp_attention:
        experts = ExpertRanks(ParallelGroup(rank, config.tp_size), SoloCollectives())
        context = context._replace(group=ParallelGroup(), expert_ranks=experts)
    with torch.device("meta"):
        model = build_model(spec, context)
    return sum(
        piece.target.nbytes for weight in model.weights() for source in weight.forms[0] for piece in source.pieces
    )


def layout_of(spec: ModelSpec, config: ServerConfig) -> ShardLayout:
    """The pools of one replica; a page where the recipe leaves their size to the machine."""
    dtype = compute_dtype(spec, config.dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype)
    kv = kv_layout(spec, page_size=config.page_size, dtype=dtype, model="")
    ranks = replica_config(config, 0).tp_size
    return ShardLayout(kv=kv, tp_size=ranks, num_pages=max(1, config.max_total_tokens // config.page_size))


def engine_lines(engine: EngineSpec, spec: ModelSpec) -> Iterator[str]:
    """What one engine holds."""
    config, layout = engine.config, layout_of(spec, engine.config)
    weights = weight_bytes(spec, config)
    token = sum(layout.page_bytes(rank) for rank in range(layout.tp_size)) * layout.kv.layers // layout.kv.page_size
    yield f"{engine.name}: {config.disagg_mode}, {_ranks(config)}, experts in {config.ep_size} parts"
    yield f"  weights a rank      {weights / GB:.3f} GB in {compute_dtype(spec, config.dtype)}"
    yield f"  KV a token          {layout.kv.bytes_per_token():,} bytes once, {token:,} over the ranks of a replica"
    if config.max_total_tokens:
        pool = layout.region_bytes(0)
        yield f"  KV pool a rank      {pool / GB:.3f} GB: {layout.num_pages:,} pages of {config.page_size} tokens"
        yield f"  weights and pool    {(weights + pool) / GB:.3f} GB a rank"
    yield f"  python -m sglang.launch_server {shlex.join(engine.flags)}"


def _ranks(config: ServerConfig) -> str:
    if config.enable_dp_attention:
        return f"{config.dp_size} replicas of 1 rank that share the experts (data-parallel attention)"
    return f"{config.dp_size} replicas of {config.tp_size} ranks" if config.dp_size > 1 else f"{config.tp_size} ranks"


def transfer_lines(source: EngineSpec, target: EngineSpec, spec: ModelSpec, tokens: int, gbps: float) -> Iterator[str]:
    """What one prompt's KV costs on the way from one engine to a replica of another."""
    here, there = layout_of(spec, source.config), layout_of(spec, target.config)
    copies = plan_copies(here, there, 0)
    pages, layers = -(-tokens // here.kv.page_size), here.kv.layers
    load: Counter[int] = Counter()
    for copy in copies:
        load[copy.source_rank] += copy.nbytes * copy.pages_in(0, pages) * layers
    total, busiest = sum(load.values()), max(load.values())
    sizes = sorted({copy.nbytes for copy in copies})
    yield f"{source.name} -> {target.name}, a prompt of {tokens:,} tokens ({pages:,} pages)"
    yield f"  bytes               {total / GB:.4f} GB, at most {busiest / GB:.4f} GB from one rank"
    writes = expected_weight(copies, 0, pages, layers)
    yield f"  writes              {writes:,} of {', '.join(f'{size:,}' for size in sizes)} bytes, before merging"
    milliseconds = busiest * 8 / (gbps * 1e9) * 1e3
    yield f"  time at {gbps:g} Gbit/s a rank  {milliseconds:.2f} ms, {milliseconds / layers:.3f} ms a layer"


def model_of(recipe: str, config: ServerConfig) -> ModelSpec:
    """The model of an engine. Raises CheckpointError where neither its folder nor a config beside the recipe is."""
    folder = Path(config.model_path)
    beside = find_recipe(recipe).parent
    return read_model_spec(beside if not folder.is_dir() and (beside / "config.json").exists() else folder)


def report(name: str, tokens: int, gbps: float) -> Iterator[str]:
    """All lines. Engines that are alike but for names, ports and addresses are shown once in full."""
    recipe = load_recipe(name)
    known: set[tuple[str, ...]] = set()
    for engine in recipe.engines:
        lines = list(engine_lines(engine, model_of(name, engine.config)))
        shape = tuple(line.partition(": ")[2] for line in lines[:1]) + tuple(lines[1:-1])
        yield from ([f"{engine.name}: alike", lines[-1]] if shape in known else lines)
        known.add(shape)
    for source in recipe.prefill:
        seen: set[tuple[int, int]] = set()
        for target in recipe.frontends:
            ranks = (replica_config(target.config, 0).tp_size, target.config.dp_size)
            if ranks not in seen:
                yield from transfer_lines(source, target, model_of(name, source.config), tokens, gbps)
            seen.add(ranks)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 2 for a recipe that cannot be."""
    parser = argparse.ArgumentParser(prog="recipe_info", description=__doc__)
    parser.add_argument("recipe", help="YAML file, or the name of one that comes with the package")
    parser.add_argument("--prompt-tokens", type=int, default=4096)
    parser.add_argument("--nic-gbps", type=float, default=400.0, help="speed of the network card that a rank has")
    args = parser.parse_args(argv)
    try:
        for line in report(args.recipe, args.prompt_tokens, args.nic_gbps):
            sys.stdout.write(line + "\n")
    except SglangError as error:
        sys.stderr.write(f"recipe_info: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
