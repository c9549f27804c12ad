"""How early does each layer's KV leave? One prefill and one decode engine, prompts of 1,024 tokens, the engine's own
trace.

    python benchmark/overlap.py [--prompts 12] [--figure docs/img/overlap.png] [--json benchmark/results/overlap.json]

Prints the share of KV bytes posted before their forward pass ended, and from counter to post: from the moment the layer
hook bumped the counter (after the attention output projection) to the moment the native watcher had posted the layer's
last write, and to the moment it saw the counter.
"""

import argparse
import asyncio
import json
import platform
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from sglang.cluster.cluster import Cluster
from sglang.cluster.recipe import load_recipe

RECIPE = """
defaults:
  model-path: {model}
  threads: 1
  max-total-tokens: 16384
  max-running-requests: 4
  chunked-prefill-size: {chunk}
  disagg-provider: {provider}
  skip-server-warmup: true
prefill:
  - port: 31700
    disagg-bootstrap-port: 31790
    trace-file: {trace}
decode:
  - port: 31710
"""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of one step; CLOCK_MONOTONIC microseconds."""

    bumped: float
    seen: float
    posted: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class Step:
    """One forward and its writes."""

    start: float
    end: float
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """What the benchmark prints."""

    steps: int
    bytes_total: int
    posted_in_forward_percent: float
    counter_to_seen_us_p50: float
    counter_to_seen_us_p99: float
    counter_to_posted_us_p50: float
    counter_to_posted_us_p99: float
    forward_ms_p50: float


def read_steps(trace: Path) -> list[Step]:
    """The steps of a prefill engine's trace file, in order, each with its layers."""
    events = [json.loads(line.rstrip(",\n")) for line in trace.read_text().splitlines()[1:]]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    by_track: dict[str, list[dict[str, Any]]] = {}
    for event in (e for e in events if e["ph"] != "M"):
        by_track.setdefault(tracks.get(event["tid"], ""), []).append(event)
    writes: dict[int, list[dict[str, Any]]] = {}
    for event in by_track.get("writes", []):
        writes.setdefault(event["args"]["step"], []).append(event)
    bumps = [event["ts"] for event in by_track.get("layers", [])]
    forwards = {event["args"]["step"]: event for event in by_track.get("forward", [])}
    return [_step(forwards[step], layers, bumps) for step, layers in sorted(writes.items())]


def _step(forward: dict[str, Any], writes: list[dict[str, Any]], bumps: list[float]) -> Step:
    count = len(writes)
    first = forward["args"]["step"] * count
    layers = (Layer(bumps[first + w["args"]["layer"]], w["ts"], w["ts"] + w["dur"], w["args"]["bytes"]) for w in writes)
    return Step(forward["ts"], forward["ts"] + forward["dur"], tuple(layers))


def figures(steps: Sequence[Step]) -> Figures:
    """Medians, tails and the share, over all layers of all steps."""
    layers = [(step, layer) for step in steps for layer in step.layers]
    total = sum(layer.nbytes for _, layer in layers)
    early = sum(layer.nbytes for step, layer in layers if layer.posted <= step.end)
    seen = [layer.seen - layer.bumped for _, layer in layers]
    posted = [layer.posted - layer.bumped for _, layer in layers]
    return Figures(
        steps=len(steps),
        bytes_total=total,
        posted_in_forward_percent=100 * early / total,
        counter_to_seen_us_p50=statistics.median(seen),
        counter_to_seen_us_p99=_p99(seen),
        counter_to_posted_us_p50=statistics.median(posted),
        counter_to_posted_us_p99=_p99(posted),
        forward_ms_p50=statistics.median(step.end - step.start for step in steps) / 1e3,
    )


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


async def run(model: str, provider: str, chunk: int, prompts: int, tokens: int) -> list[Step]:
    """Start the two engines, send `prompts` random prompts of `tokens` tokens one by one, read the trace."""
    with tempfile.TemporaryDirectory() as folder:
        trace, recipe = Path(folder) / "trace.json", Path(folder) / "recipe.yaml"
        recipe.write_text(RECIPE.format(model=model, provider=provider, chunk=chunk, trace=trace))
        cluster = Cluster(load_recipe(str(recipe)), on_log=lambda name, line: None)
        async with cluster, httpx.AsyncClient(timeout=300) as client:
            rng = random.Random(1)
            for _ in range(prompts):
                body = {
                    "input_ids": [rng.randrange(100, 40000) for _ in range(tokens + 1)],
                    "sampling_params": {"max_new_tokens": 1, "temperature": 0},
                }
                answer = await client.post("http://127.0.0.1:31710/generate", json=body)
                answer.raise_for_status()
        return read_steps(trace)


def draw(step: Step, path: Path) -> None:
    """One forward: when each layer's KV was ready and when its writes were posted."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.5))
    ready = [(layer.bumped - step.start) / 1e3 for layer in step.layers]
    posted = [(layer.posted - step.start) / 1e3 for layer in step.layers]
    numbers = range(len(step.layers))
    axes.hlines(numbers, ready, posted, color="tab:orange", lw=4, label="counter to last post")
    axes.plot(ready, numbers, "|", color="tab:blue", ms=9, mew=2, label="layer's KV complete (counter bumped)")
    axes.plot(posted, numbers, ".", color="tab:red", ms=6, label="layer's writes posted")
    axes.axvline((step.end - step.start) / 1e3, color="black", ls="--", label="forward pass ends")
    axes.set(xlabel="ms since the forward pass began", ylabel="layer", xlim=(0, None))
    axes.invert_yaxis()
    axes.legend(loc="lower left", fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main() -> int:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", default="models/SmolLM2-135M-Instruct")
    parser.add_argument("--provider", default="tcp", choices=("tcp", "shm", "auto"))
    parser.add_argument("--chunk", type=int, default=2048, help="--chunked-prefill-size of the prefill engine")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    steps = asyncio.run(run(args.model_path, args.provider, args.chunk, args.prompts, args.tokens))
    measured = figures(steps)
    record = {
        "command": " ".join(["python", *sys.argv]),
        "machine": platform.processor() or platform.machine(),
        "provider": args.provider,
        **asdict(measured),
    }
    print(json.dumps(record, indent=2))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(record, indent=2) + "\n")
    if args.figure:
        draw(sorted(steps, key=lambda s: s.end - s.start)[len(steps) // 2], args.figure)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
