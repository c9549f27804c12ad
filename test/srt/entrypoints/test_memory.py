"""Memory of the HTTP process and of the scheduler's loop stays flat over 20,000 requests."""

import asyncio
import gc
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from support.live_front import LiveFront

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmark"))

import scheduler_loop
from sglang.srt.core.sampling import SamplingParams
from sglang.srt.messages.frontend import Generate

COUNT = 20_000


def resident() -> float:
    """MiB of this process."""
    gc.collect()
    return psutil.Process().memory_info().rss / 2**20


@pytest.mark.slow
def test_of_the_front(live: LiveFront) -> None:
    async def ask(count: int) -> None:
        limits = httpx.Limits(max_connections=32, keepalive_expiry=1)  # before the server gives up on it
        async with httpx.AsyncClient(base_url=live.url, timeout=60, limits=limits, trust_env=False) as client:
            gate = asyncio.Semaphore(32)

            async def one(number: int) -> None:
                body = {"prompt": f"number {number}", "max_tokens": 4, "stream": bool(number % 2)}
                async with gate:
                    assert (await client.post("/v1/completions", json=body)).status_code == 200

            for start in range(0, count, 500):
                await asyncio.gather(*(one(start + i) for i in range(500)))
                live.scheduler.seen.clear()

    asyncio.run(ask(4000))
    before = resident()
    asyncio.run(ask(COUNT))
    assert resident() - before < 24, "MiB gained over 20,000 requests"
    assert not live.front.calls and live.front.client.open_outputs == 0


@pytest.mark.parametrize("count", [2000, pytest.param(COUNT, marks=pytest.mark.slow)])
def test_of_the_scheduler(count: int) -> None:
    scheduler, _, to, back = scheduler_loop.build(64, "fcfs")

    def serve(first: int, count: int) -> None:
        for number in range(first, first + count):
            tokens = tuple(range(number % 1000, number % 1000 + 40))
            sampling = SamplingParams(max_new_tokens=3, temperature=0.0)
            to.append(Generate(rid=f"r{number}", token_ids=tokens, sampling=sampling))
            if number % 64 == 0:
                scheduler.turn()
        while not scheduler.idle or to:
            scheduler.turn()
            back.clear()
        scheduler.cache.check()

    serve(0, 1000)
    before = resident()
    for start in range(0, count, 1000):
        serve(1000 + start, 1000)
    assert resident() - before < 8, f"MiB gained over {count} requests"
    assert not scheduler.requests and scheduler.cache.held == 0
