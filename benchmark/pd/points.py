"""One load on one running set-up, by bench_serving's generator and arithmetic."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx
import numpy as np

from pd.setups import Shape
from sglang.bench.client import BenchClient, RequestOutput
from sglang.bench.dataset import DatasetOptions, Prompt, random_ids
from sglang.bench.dialects import Backend, RequestSettings, dialect_of
from sglang.bench.load import arrival_times, run_load
from sglang.bench.metrics import tpot
from sglang.bench.tokenizer import BenchTokenizer

IDLE_REQUESTS = 3
Point = dict[str, Any]


def request_count(rate: float, seconds: float) -> int:
    """How many requests an open load of `seconds` has."""
    return max(6, round(rate * seconds))


async def idle(url: str, shape: Shape, tokenizer: BenchTokenizer, model: str, backend: Backend) -> Point:
    """Requests one after another: what a user alone sees."""
    prompts = prompts_of(shape, IDLE_REQUESTS, 1, tokenizer)
    return await _run(url, prompts, [0.0] * len(prompts), model, backend, at_once=1)


async def open_load(
    url: str,
    shape: Shape,
    tokenizer: BenchTokenizer,
    model: str,
    backend: Backend,
    rate: float,
    seconds: float,
) -> Point:
    """Poisson arrivals, the same for every set-up, whatever becomes of the requests."""
    prompts = prompts_of(shape, request_count(rate, seconds), 2, tokenizer)
    return await _run(url, prompts, arrival_times(prompts, rate, seed=3), model, backend)


async def warm_up(url: str, shape: Shape, tokenizer: BenchTokenizer, model: str, backend: Backend) -> None:
    """A few requests at once: first touches, and every engine behind a balancer gets one."""
    prompts = [replace(p, output_len=8) for p in prompts_of(shape, 4, 0, tokenizer)]
    point = await _run(url, prompts, [0.0] * len(prompts), model, backend)
    if point["failed"]:
        raise RuntimeError(f"the warm-up failed: {point['errors'][0]}")


def prompts_of(shape: Shape, count: int, seed: int, tokenizer: BenchTokenizer) -> list[Prompt]:
    """`count` prompts of random ids, all of the shape's lengths."""
    options = DatasetOptions(
        name="random-ids",
        num_prompts=count,
        seed=seed,
        random_input_len=shape.read,
        random_output_len=shape.written,
        random_range_ratio=1.0,
    )
    return random_ids(options, tokenizer)


async def _run(
    url: str,
    prompts: Sequence[Prompt],
    times: Sequence[float],
    model: str,
    backend: Backend,
    at_once: int | None = None,
) -> Point:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=600.0, limits=limits, trust_env=False) as http:
        client = BenchClient(http, url, dialect_of(backend), RequestSettings(model=model))
        outputs, duration = await run_load(client, prompts, times, at_once)
    await asyncio.sleep(0.5)  # the last answers' pages are given back
    return condense(outputs, duration)


def condense(outputs: Sequence[RequestOutput], duration: float) -> Point:
    """What is kept of a load: each request's times in milliseconds, and the distribution of all token gaps."""
    done = [output for output in outputs if output.ok]
    gaps = np.asarray([gap for output in done for gap in output.itl] or [0.0]) * 1e3
    quantiles = (0, 1, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)
    return {
        "duration_s": round(duration, 3),
        "completed": len(done),
        "failed": len(outputs) - len(done),
        "errors": sorted({output.error for output in outputs if output.error})[:3],
        "sent_s": [round(o.sent_at - outputs[0].sent_at, 3) for o in done],
        "ttft_ms": [round(o.ttft * 1e3, 2) for o in done],
        "tpot_ms": [round((tpot(o) or 0.0) * 1e3, 3) for o in done],
        "latency_ms": [round(o.latency * 1e3, 2) for o in done],
        "output_tokens": sum(o.output_len for o in done),
        "gaps": int(gaps.size),
        "itl_ms": {f"p{q:g}": round(float(np.percentile(gaps, q)), 3) for q in quantiles},
    }
