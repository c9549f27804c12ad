"""When requests are sent, and how many at once."""

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import numpy as np

from sglang.bench.client import BenchClient, RequestOutput
from sglang.bench.dataset import Prompt
from sglang.srt.errors import ConfigError

OnDone = Callable[[RequestOutput], None]


def arrival_times(prompts: Sequence[Prompt], request_rate: float, seed: int) -> list[float]:
    """Seconds after the start at which each prompt is sent.

    A trace brings its own times. Otherwise a Poisson process of `request_rate` a second; infinity sends all at once.
    """
    if request_rate <= 0:
        raise ConfigError("--request-rate must be above 0, or inf")
    if all(prompt.at is not None for prompt in prompts):
        times = [prompt.at or 0.0 for prompt in prompts]
        return [time - min(times) for time in times]
    if math.isinf(request_rate):
        return [0.0] * len(prompts)
    gaps = np.random.default_rng(seed).exponential(1.0 / request_rate, size=len(prompts))
    return [float(time) for time in np.cumsum(gaps) - gaps[0]]


async def run_load(
    client: BenchClient,
    prompts: Sequence[Prompt],
    times: Sequence[float],
    max_concurrency: int | None = None,
    on_done: OnDone | None = None,
) -> tuple[list[RequestOutput], float]:
    """Send each prompt at its time; return the outcomes in the order of `prompts`, and the duration in seconds.

    Above `max_concurrency` a request waits unsent: its clock starts when it is sent.
    """
    loop = asyncio.get_running_loop()
    gate = asyncio.Semaphore(max_concurrency) if max_concurrency else None
    start = loop.time()

    async def one(prompt: Prompt, at: float) -> RequestOutput:
        await asyncio.sleep(start + at - loop.time())
        async with AsyncExitStack() as stack:
            if gate is not None:
                await stack.enter_async_context(gate)
            output = await client.send(prompt)
        if on_done is not None:
            on_done(output)
        return output

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(prompt, at)) for prompt, at in zip(prompts, times, strict=True)]
    return [task.result() for task in tasks], loop.time() - start
