"""Does decoding keep its pace while prompts are computed? Two cores, used in several ways, under rising load.

    python benchmark/disagg_vs_mixed.py                        # measure what is missing, then tables and figures
    python benchmark/disagg_vs_mixed.py --budget 460           # ... for so many seconds at most; the next call goes on
    python benchmark/disagg_vs_mixed.py --model qwen3-0.6b-shape
    python benchmark/disagg_vs_mixed.py --setups "vllm 2c"     # ... of these set-ups only
    python benchmark/disagg_vs_mixed.py --plot-only

Mixed: one engine with both cores, and two engines of one core behind the balancer, each with the chunk size that was
best for its users in a sweep. Disaggregated: 1 prefill and 1 decode engine, pinned to a core each, and 1P:3D, whose
decode engines share a core. vLLM: its server with both cores, after a sweep of the same chunk sizes, if its environment
was made (`engine_vs_peers.py --setup-peers --peers vllm`). Arrivals are Poisson and do not wait for answers; all
set-ups get the same prompts at the same times. The load generator is bench_serving's and runs on the same two cores.
`idle` are requests one by one.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np

from machine import FIGURES, ROOT, machine_line
from pd.plots import draw_loads, draw_victims
from pd.points import idle, open_load, warm_up
from pd.setups import DTYPES, KINDS, SHAPES, Kind, Setup, Shape, disaggregated, one_engine, two_engines
from pd.store import SWEEP, Store, median_tps
from pd.summary import curve, goodputs, load_table, objectives, verdicts
from pd.victim import ANSWER, watch
from pd.vllm import LOG, START_S, default_dtype, serving
from pd.vllm import kinds as vllm_kinds
from peers.models import write_qwen3_shape
from sglang.bench.tokenizer import BenchTokenizer, load_tokenizer
from sglang.cluster.cluster import Cluster
from sglang.cluster.recipe import build_recipe
from sglang.cluster.signals import StoppedError, run_stoppable
from sglang.srt.errors import ConfigError, EngineError

MODELS = {"smollm2": "SmolLM2-135M-Instruct", "qwen3-0.6b-shape": "qwen3-0.6b-shape"}
TOKENS, ROWS = 49152, 48
"""KV tokens and rows in all: enough that neither limits, also in overload."""
DRAIN_S = 12.0
"""Allowed, beyond its own length, for the last answers of a load."""


class Bench:
    """One model's measurements, within a budget of seconds."""

    def __init__(self, model: str, args: argparse.Namespace, peers: Sequence[Kind]) -> None:
        """`peers` are mixed set-ups of others' engines."""
        folder = ROOT / "models" / MODELS[model]
        if model == "qwen3-0.6b-shape":
            write_qwen3_shape(folder)
        self._model, self._store = str(folder), Store(model)
        self._tokenizer: BenchTokenizer = load_tokenizer(str(folder))
        self._seconds, self._sweep_seconds = args.seconds, args.sweep_seconds
        self._only, self._peers = args.setups, peers
        self._ends: float = time.monotonic() + args.budget

    async def shape(self, shape: Shape) -> None:
        """Every set-up under every load; a mixed one after the sweep of its chunk sizes."""
        loads = ["idle", *map(str, shape.rates)]
        await self._mixed(one_engine, shape, loads)
        await self.loads(disaggregated(), shape, loads, self._seconds)
        await self._mixed(two_engines, shape, loads)
        await self.loads(disaggregated(3), shape, ["idle", str(shape.middle)], self._seconds)
        if shape.read <= 512:
            await self.loads(disaggregated(local=shape.read), shape, loads, self._seconds)
        for kind in self._peers:
            await self._mixed(kind, shape, loads)

    async def _mixed(self, kind: Kind, shape: Shape, loads: list[str]) -> None:
        for chunk in shape.chunks:
            await self.loads(kind(chunk), shape, [SWEEP], self._sweep_seconds)
        best = self.best(shape, [kind(chunk) for chunk in shape.chunks])
        if best:
            await self.loads(best, shape, loads, self._seconds)

    def best(self, shape: Shape, setups: Sequence[Setup]) -> Setup | None:
        """The set-up whose median user was fastest in the sweep; None while none was measured."""
        points = {s.name: self._store.record(shape, s)["loads"].get(SWEEP) for s in setups}
        there = [s for s in setups if points[s.name]]
        return max(there, key=lambda s: median_tps(points[s.name]), default=None)

    async def loads(self, setup: Setup, shape: Shape, loads: list[str], seconds: float) -> None:
        """Measure those of `loads` that are missing."""
        missing = self._store.missing(shape, setup, loads) if setup.kind in self._only else []
        if not missing or not self._time_for(seconds + self._start_s(setup)):
            return
        async with self._running(setup) as cluster:
            asked = (cluster.url, shape, self._tokenizer, self._model, setup.engine)
            await cluster.supervise(warm_up(*asked))
            for load in missing:
                if not self._time_for(seconds):
                    return
                rate = shape.middle if load == SWEEP else 0.0 if load == "idle" else float(load)
                point = await cluster.supervise(open_load(*asked, rate, seconds) if rate else idle(*asked))
                self._store.add(shape, setup, load, {**point, "rate": rate})
                ttft, failed = np.median(point["ttft_ms"]), point["failed"]
                say(
                    f"{shape.name}, {setup.name}, {load}: {median_tps(point):.1f} tok/s a user, TTFT {ttft:.0f} ms, "
                    f"ITL p99 {point['itl_ms']['p99']:.1f} ms, {point['duration_s']:.0f} s, {failed} failed"
                )

    async def victims(self) -> None:
        """One answer while others' prompts are computed, on each kind of set-up."""
        peers = [kind(chunk) for kind in self._peers for chunk in (0, 64)]
        for setup in (one_engine(0), one_engine(64), disaggregated(), *peers):
            missing = setup.kind in self._only and self._store.missing(ANSWER, setup, ["victim"])
            if missing and self._time_for(20 + self._start_s(setup)):
                async with self._running(setup) as cluster:
                    asked = (self._tokenizer, self._model, setup.engine)
                    await cluster.supervise(warm_up(cluster.url, Shape(2048, 8, ()), *asked))
                    point = await cluster.supervise(watch(cluster.url, *asked, prompts=2))
                    self._store.add(ANSWER, setup, "victim", point)
                    say(f"victim, {setup.name}: {_victim_line(point)}")

    def _time_for(self, seconds: float) -> bool:
        enough = time.monotonic() + seconds + DRAIN_S < self._ends
        if not enough:
            say("the budget is used up; call again to go on")
        return enough

    @staticmethod
    def _start_s(setup: Setup) -> float:
        return START_S if setup.engine == "vllm" else 0.0

    @asynccontextmanager
    async def _running(self, setup: Setup) -> AsyncIterator[Cluster]:
        recipe = build_recipe(setup.recipe(self._model, TOKENS, ROWS), setup.name)
        started = serving(recipe, LOG) if setup.engine == "vllm" else Cluster(recipe, on_log=_log)
        async with started as cluster:
            yield cluster


def _log(name: str, line: str) -> None:
    if " ERROR " in line:
        say(f"{name} | {line}")


def _victim_line(point: dict[str, list[float]]) -> str:
    quiet, busy = (np.asarray(point[key] or [0.0]) for key in ("quiet_gaps_ms", "busy_gaps_ms"))
    return (
        f"ITL p50 {np.median(quiet):.1f} ms alone, {np.median(busy):.1f} beside prompts; "
        f"p99 {np.percentile(quiet, 99):.1f} and {np.percentile(busy, 99):.1f}; longest {busy.max():.0f}"
    )


def say(line: str) -> None:
    """Progress."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def report(model: str) -> None:
    """Tables to standard output, figures to docs/img."""
    store = Store(model)
    for shape in SHAPES[model]:
        records = list(store.records(shape.name))
        curves = [each for each in map(curve, records) if each]
        sweeps = {r["setup"]: r["loads"][SWEEP] for r in records if SWEEP in r["loads"]}
        if not curves:
            continue
        bounds = objectives(curves)
        machine = machine_line(curves[0].idle["machine"])
        print(f"\n### {model}, {shape.read} tokens in, {shape.written} out\n\n{machine}\n")
        chosen = ", ".join(f"{n}: {median_tps(p):.1f} at {p.get('rate', shape.middle)}" for n, p in sweeps.items())
        print(f"Sweep, tok/s of the median user at requests/s: {chosen}\n")
        print(verdicts(curves) + "\n")
        if bounds:
            print(goodputs(curves, bounds) + "\n")
        print(load_table(curves, bounds))
        title = f"{model}, {shape.read} tokens in, {shape.written} out, two cores"
        draw_loads(title, curves, bounds, FIGURES / f"disagg_{model}_{shape.name}.png")
    victims = [{**r["loads"]["victim"], "setup": r["setup"]} for r in store.records(ANSWER.name)]
    if victims:
        print("\n### One answer while two prompts of 2,048 tokens are computed for others\n")
        for victim in victims:
            print(f"- {victim['setup']}: {_victim_line(victim)}")
        draw_victims(victims, FIGURES / f"disagg_{model}_victim.png")


async def run(args: argparse.Namespace) -> None:
    """Measure what was asked for."""
    wanted = any(name.startswith("vllm") for name in args.setups)
    bench = Bench(args.model, args, vllm_kinds(args.torch_peers_dtype or default_dtype(), say) if wanted else [])
    if "victims" in args.parts:
        await bench.victims()
    for shape in SHAPES[args.model]:
        if "loads" in args.parts and (not args.shapes or shape.name in args.shapes):
            await bench.shape(replace(shape, rates=tuple(args.rates)) if args.rates else shape)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0; 1 where engines could not be run, 130 after a signal that asked to stop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(SHAPES), default="smollm2")
    parser.add_argument("--shapes", nargs="+", default=[], metavar="IN-OUT", help="such as 2048-64; default: all")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[], help="requests a second, in place of a shape's own"
    )
    parser.add_argument("--parts", nargs="+", choices=["victims", "loads"], default=["victims", "loads"])
    parser.add_argument("--setups", nargs="+", choices=KINDS, default=list(KINDS), help="measure only these")
    parser.add_argument(
        "--torch-peers-dtype", choices=DTYPES, help="of vLLM; default: bfloat16 where the CPU multiplies it"
    )
    parser.add_argument("--seconds", type=float, default=40.0, help="of arrivals a point")
    parser.add_argument("--sweep-seconds", type=float, default=20.0, help="of arrivals a point of the chunk sweep")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds after which no point is begun")
    parser.add_argument("--plot-only", action="store_true", help="tables and figures of what is there")
    args = parser.parse_args(argv)
    try:
        if not args.plot_only:
            asyncio.run(run_stoppable(run(args), lambda: say("the engines are being ended")))
    except (ConfigError, EngineError) as error:
        say(str(error))
        return 1
    except StoppedError:
        return 130
    report(args.model)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
