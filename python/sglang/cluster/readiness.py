"""When a process of a cluster can take requests."""

import asyncio

import httpx

from sglang.cluster.recipe import EngineSpec, RouterSpec

POLL_SECONDS = 0.1


async def engine_ready(http: httpx.AsyncClient, spec: EngineSpec) -> None:
    """Wait until the engine's /health answers 200."""
    while not await _answers(http, f"{spec.url}/health"):
        await asyncio.sleep(POLL_SECONDS)


async def router_ready(http: httpx.AsyncClient, spec: RouterSpec, workers: int) -> None:
    """Wait until the balancer knows `workers` healthy engines; its /health answers 200 before it knows any."""
    while await _healthy_workers(http, spec.url) < workers:
        await asyncio.sleep(POLL_SECONDS)


async def _answers(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(url)).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


async def _healthy_workers(http: httpx.AsyncClient, url: str) -> int:
    try:
        answer = await http.get(f"{url}/workers")
        return sum(worker["is_healthy"] is True for worker in answer.json()["workers"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return 0
