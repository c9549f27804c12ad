"""What does sending layer by layer gain over sending after the forward? TTFT over prompt lengths and bandwidths.

    python benchmark/layerwise.py [--rates 0.1 1 0] [--lengths 512 1024 2048 4096]
    python benchmark/layerwise.py --plot-only

One prefill and one decode engine with a core each, provider tcp, one prompt at a time, the whole prompt in one forward
(where the difference is largest), and in chunks of 512. `--disagg-send after-forward`, a flag for this experiment only,
keeps every layer until the last one of its forward is complete. The two ways take turns prompt by prompt, on two
clusters of which one is used at a time. Bandwidth in GB/s is set by a token bucket (tc tbf) on the loopback of a
network namespace of our own, which needs the right to make one (root, or user namespaces); 0 leaves it as it is.
Nothing else runs in that namespace; control messages and HTTP share the bucket, which is little beside the KV.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import httpx

from machine import FIGURES, ROOT, Record, describe, load_all, machine_line, markdown, results, save
from pd.points import prompts_of
from pd.setups import Shape
from sglang.bench.client import BenchClient
from sglang.bench.dataset import Prompt
from sglang.bench.dialects import RequestSettings, dialect_of
from sglang.bench.tokenizer import load_tokenizer
from sglang.cluster.cluster import Cluster
from sglang.cluster.recipe import Recipe, build_recipe

FOLDER = results("layerwise")
INSIDE = "SGLANG_LAYERWISE_INSIDE"
"""Set in the process that runs in the namespace."""
WAYS = ("layerwise", "after-forward")


def recipe(model: str, way: str, chunk: int, longest: int, port: int) -> Recipe:
    """One prefill engine on core 0, one decode engine on core 1."""
    return build_recipe(
        {
            "defaults": {
                "model-path": model,
                "threads": 1,
                "max-total-tokens": 2 * longest,
                "max-running-requests": 2,
                "disable-radix-cache": True,
                "disagg-provider": "tcp",
                "log-level": "warning",
            },
            "prefill": [
                {
                    "port": port,
                    "disagg-bootstrap-port": port + 90,
                    "chunked-prefill-size": chunk or longest,
                    "disagg-send": way,
                    "cores": [0],
                }
            ],
            "decode": [{"port": port + 1, "cores": [1]}],
        },
        f"{way}, chunk {chunk}",
    )


def throttle(rate: float) -> None:
    """Let loopback carry `rate` GB/s; 0: as much as it can. Raises CalledProcessError without the right to say so."""
    subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], check=False, capture_output=True)
    if rate:
        # A bucket of 2 ms, at least four of loopback's 64 KiB segments; a queue that never drops.
        bucket = max(256 * 1024, int(rate * 2e6))
        command = f"tc qdisc add dev lo root tbf rate {rate * 8e9:.0f}bit burst {bucket} limit 1000000000"
        subprocess.run(command.split(), check=True)


async def measure(model: str, chunk: int, rates: Sequence[float], lengths: Sequence[int], rounds: int) -> None:
    """One record for each rate and chunk size that has none."""
    missing = [rate for rate in rates if not (FOLDER / _name(chunk, rate)).is_file()]
    if not missing:
        return
    longest = max(lengths) + 64
    tokenizer = load_tokenizer(model)
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=600.0, trust_env=False))
        clients = {}
        for index, way in enumerate(WAYS):
            made = recipe(model, way, chunk, longest, 31300 + 10 * index)
            cluster = await stack.enter_async_context(Cluster(made, on_log=lambda name, line: None))
            clients[way] = BenchClient(http, cluster.url, dialect_of("sglang"), RequestSettings(model=model))
        for length in lengths:
            for client in clients.values():
                await _ttft(client, prompts_of(Shape(length, 2, ()), 1, 9, tokenizer)[0])
        for rate in missing:
            throttle(rate)
            samples: dict[str, dict[str, list[float]]] = {}
            for length in lengths:
                prompts = prompts_of(Shape(length, 2, ()), rounds, int(1000 * rate) + length, tokenizer)
                samples[str(length)] = await _turns(clients, prompts)
                said = ", ".join(f"{way} {statistics.median(t):.0f} ms" for way, t in samples[str(length)].items())
                say(f"chunk {chunk or 'whole'}, {rate or 'no'} GB/s, {length} tokens: {said}")
            throttle(0)
            record = {"model": model.rsplit("/", 1)[-1], "chunk": chunk, "gb_per_s": rate, "machine": describe()}
            save(FOLDER / _name(chunk, rate), {**record, "ttft_ms": samples})


async def _turns(clients: dict[str, BenchClient], prompts: Sequence[Prompt]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {way: [] for way in clients}
    for number, prompt in enumerate(prompts):
        for way in WAYS if number % 2 else reversed(WAYS):
            times[way].append(await _ttft(clients[way], prompt))
    return times


async def _ttft(client: BenchClient, prompt: Prompt) -> float:
    output = await client.send(prompt)
    if not output.ok:
        raise RuntimeError(f"a request failed: {output.error}")
    return output.ttft * 1e3


def _name(chunk: int, rate: float) -> str:
    return f"chunk{chunk}-{rate:g}.json"


def say(line: str) -> None:
    """Progress."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def report() -> None:
    """A table to standard output, and the figure."""
    records = sorted(load_all(FOLDER), key=lambda r: (r["chunk"], r["gb_per_s"] or float("inf")))
    if not records:
        say("nothing has been measured")
        return
    print(f"{records[0]['model']}, {machine_line(records[0]['machine'])}\n")
    header = ["forward", "GB/s", "prompt", "layer by layer, TTFT ms", "after the forward", "later by, ms (of pairs)"]
    print(markdown(header, [row for record in records for row in _rows(record)]))
    draw(records)


def _rows(record: Record) -> list[list[str]]:
    rows = []
    for length, ways in record["ttft_ms"].items():
        gains = [b - a for a, b in zip(ways["layerwise"], ways["after-forward"], strict=True)]
        medians = [statistics.median(ways[way]) for way in WAYS]
        span = f"{statistics.median(gains):.0f} ({min(gains):.0f} to {max(gains):.0f})"
        kind = f"chunks of {record['chunk']}" if record["chunk"] else "whole"
        rows.append([kind, f"{record['gb_per_s'] or 'not set'}", length, *(f"{m:.0f}" for m in medians), span])
    return rows


def draw(records: Sequence[Record]) -> None:
    """Median gain over the prompt's length, a line a bandwidth and way of cutting."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5))
    for record in records:
        lengths = [int(length) for length in record["ttft_ms"]]
        gains = [
            statistics.median(b - a for a, b in zip(w["layerwise"], w["after-forward"], strict=True))
            for w in record["ttft_ms"].values()
        ]
        name = f"{record['gb_per_s'] or 'no limit on'} GB/s, {'chunks of 512' if record['chunk'] else 'one forward'}"
        axes.plot(lengths, gains, "--" if record["chunk"] else "-", marker="o", label=name)
    axes.set(xlabel="prompt, tokens", ylabel="ms by which layer-wise sending makes the first token earlier")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    FIGURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURES / "layerwise.png", dpi=110)
    plt.close(figure)


def enter_namespace() -> int:
    """Run this script again in a network namespace with a loopback of its own; its exit code."""
    inside = ["bash", "-c", 'ip link set lo up && exec "$@"', "inside", sys.executable, *sys.argv]
    return subprocess.run(["unshare", "-rn", *inside], env={**os.environ, INSIDE: "1"}, check=False).returncode


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-path", default=str(ROOT / "models" / "SmolLM2-135M-Instruct"))
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 1.0, 0.0], help="GB/s; 0 sets no limit")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--chunks", type=int, nargs="+", default=[0, 512], help="0: the whole prompt in one forward")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plot-only", action="store_true", help="table and figure of what is there")
    args: Any = parser.parse_args(argv)
    if not args.plot_only and INSIDE not in os.environ:
        return enter_namespace()
    if not args.plot_only:
        began = time.monotonic()
        for chunk in args.chunks:
            asyncio.run(measure(args.model_path, chunk, args.rates, args.lengths, args.rounds))
        say(f"measured in {time.monotonic() - began:.0f} s")
    report()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
