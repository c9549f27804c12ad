"""Malformed requests from a seeded fuzzer: only 4xx, and the next good request gets the same tokens as before."""

import asyncio
import random

import httpx
import pytest

from support.engines import Engine
from support.fuzz import Request, malformed


async def attack(url: str, requests: list[Request]) -> list[tuple[Request, int, str]]:
    gate = asyncio.Semaphore(8)
    limits = httpx.Limits(max_connections=8)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits, trust_env=False) as client:

        async def one(request: Request) -> tuple[Request, int, str]:
            method, path, body = request
            async with gate:
                answer = await client.request(method, path, content=body)
            return request, answer.status_code, answer.text[:300]

        return await asyncio.gather(*map(one, requests))


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_malformed_requests_get_4xx_and_the_engine_lives_on(engine: Engine, count: int) -> None:
    rng = random.Random(count)
    before = engine.generate("The capital of France is", 8)["output_ids"]
    for found, status, text in asyncio.run(attack(engine.url, [malformed(rng) for _ in range(count)])):
        assert 400 <= status < 500, (found, status, text)
    assert engine.generate("The capital of France is", 8)["output_ids"] == before
    gauges = engine.metrics()
    assert gauges["num_running_reqs"] == gauges["num_queue_reqs"] == 0
