"""What one user who is being answered notices of other users' prompts: the gaps between its tokens, over time."""

import asyncio
import time
from itertools import pairwise

import httpx

from pd.points import Point, condense, prompts_of
from pd.setups import Shape
from sglang.bench.client import BenchClient
from sglang.bench.dialects import Backend, RequestSettings, dialect_of
from sglang.bench.tokenizer import BenchTokenizer

ANSWER = Shape(256, 800, ())
PROMPT = Shape(2048, 1, ())
QUIET_EVENTS = 150
"""Events of the answer, about a token each, before the prompts come."""


async def watch(url: str, tokenizer: BenchTokenizer, model: str, backend: Backend, prompts: int) -> Point:
    """One answer of 800 tokens; from its 150th on `prompts` prompts of 2,048 tokens come one after another.

    The prompts want one token each, so that the decode engine gets as little of them as there can be.
    """
    async with httpx.AsyncClient(timeout=600.0, trust_env=False) as http:
        client = BenchClient(http, url, dialect_of(backend), RequestSettings(model=model))
        flowing = asyncio.Event()
        seen: list[str] = []

        def count(text: str) -> None:
            seen.append(text)
            if len(seen) == QUIET_EVENTS:
                flowing.set()

        answer = asyncio.create_task(client.send(prompts_of(ANSWER, 1, 7, tokenizer)[0], count))
        waiting = asyncio.create_task(flowing.wait())
        await asyncio.wait([answer, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        began = time.perf_counter()
        others = []
        for seed in range(prompts):
            if answer.done():
                break
            others.append(await client.send(prompts_of(PROMPT, 1, 100 + seed, tokenizer)[0]))
        ended = time.perf_counter()
        output = await answer
    arrivals = [output.sent_at + output.ttft]
    for gap in output.itl:
        arrivals.append(arrivals[-1] + gap)
    spans = list(pairwise(arrivals))
    quiet = [end - start for start, end in spans if end < began]
    busy = [end - start for start, end in spans if end >= began and start < ended]
    point = condense([output, *others], ended - began)
    return point | {
        "arrival_s": [round(at - began, 4) for at in arrivals],
        "quiet_gaps_ms": [round(gap * 1e3, 2) for gap in quiet],
        "busy_gaps_ms": [round(gap * 1e3, 2) for gap in busy],
        "busy_s": round(ended - began, 3),
    }
