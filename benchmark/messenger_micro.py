"""The small costs: one arm() of a large request, counter to first post, and small writes a second."""

import statistics
import time
from typing import Any

import numpy as np

import pyfabric
from messenger_jobs import Job, Memory
from messenger_pairs import Pair

PAGES, LAYERS = 2048, 61


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def arm_cost(pair: Pair, repeats: int = 300, unmeasured: int = 100) -> dict[str, float]:
    """Microseconds that the calling Python thread spends in arm() for 2,048 pages and 61 layers; cancelled, so that
    nothing is sent. The first ones warm the process up: else whichever provider comes first pays for it."""
    rng = np.random.default_rng(1)
    job = Job(512, rng.permutation(PAGES).astype(np.int32), rng.permutation(PAGES).astype(np.int32))
    thresholds = np.arange(1, LAYERS + 1, dtype=np.uint64) + np.uint64(1 << 40)
    times: list[float] = []
    for _ in range(unmeasured + repeats):
        lane = pair.lane(job, LAYERS, layer_bytes=1 << 20)
        start = time.perf_counter_ns()
        handle = pair.engine.arm(pyfabric.Program(pair.counter, thresholds, 1, (lane,)))
        times.append((time.perf_counter_ns() - start) / 1000)
        pair.engine.cancel(handle)
        pair.wait(pyfabric.ProgramDrained)
    del times[:unmeasured]
    return {"arm_us_p50": statistics.median(times), "arm_us_p99": percentile(times, 0.99)}


def counter_to_post(pair: Pair, layers: int = 3000, gap_s: float = 100e-6) -> dict[str, float]:
    """Microseconds from just before Counter.add() until the layer's one write of 64 bytes was posted.

    This thread sleeps between layers and the receiver naps, so that of two cores one is the worker's.
    """
    job = Job(64, np.zeros(1, np.int32), np.zeros(1, np.int32))
    lane = pair.lane(job, 1)
    zeros = np.zeros(layers, np.uint64)
    wide = pyfabric.Lane(
        **{**{f: getattr(lane, f) for f in lane.__slots__}, "source_layers": zeros, "destination_layers": zeros}
    )
    base = pair.counter.value
    thresholds = np.arange(1, layers + 1, dtype=np.uint64) + np.uint64(base)
    pair.engine.arm(pyfabric.Program(pair.counter, thresholds, 1, (wide,)))
    time.sleep(0.02)
    bumped = np.zeros(layers, np.int64)
    for layer in range(layers):
        time.sleep(gap_s)
        bumped[layer] = time.monotonic_ns()
        pair.counter.add()
    done: pyfabric.ProgramDone = pair.wait(pyfabric.ProgramDone)
    found: dict[str, float] = {}
    for name, when in (("seen", done.seen_ns), ("posted", done.posted_ns)):
        took = ((when - bumped) / 1000).tolist()
        found |= {f"counter_to_{name}_us_p{int(share * 100)}": percentile(took, share) for share in (0.5, 0.9, 0.99)}
    return found


def small_writes(pair: Pair, repeats: int = 9) -> dict[str, float]:
    """Writes of 64 bytes a second, posted from one arm(): 2,048 extents x 61 layers, none merged."""
    rng = np.random.default_rng(2)
    job = Job(128, rng.permutation(PAGES).astype(np.int32), rng.permutation(PAGES).astype(np.int32))
    program = pyfabric.Program(pair.counter, np.zeros(LAYERS, np.uint64), 1, (pair.lane(job, LAYERS, 64, 1 << 20),))
    rates: list[float] = []
    for _ in range(repeats):
        before = pair.engine.stats().writes_posted
        start = time.monotonic_ns()
        pair.engine.arm(program)
        done: pyfabric.ProgramDone = pair.wait(pyfabric.ProgramDone)
        posted = pair.engine.stats().writes_posted - before
        rates.append(posted / (int(done.posted_ns[-1]) - start) * 1e9)
    return {
        "small_writes_per_s": statistics.median(rates),
        "small_extents_per_s": statistics.median(rates) * PAGES * LAYERS / posted,
    }


def measure() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for provider in ("shm", "tcp", "mapped"):
        memory: Memory = "memfd" if provider == "mapped" else "small"
        pair = Pair(provider, memory)
        found[provider] = {
            **arm_cost(pair),
            **small_writes(pair),
            "sleeping": counter_to_post(pair),
        }
        pair.close()
        pair = Pair(provider, memory, spin=True)
        found[provider]["spinning"] = counter_to_post(pair)
        pair.close()
    return found
