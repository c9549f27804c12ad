"""This repository's offline `Engine`: a scheduler process with its own compute thread, answers over ZeroMQ."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

from protocol import clock_of, serve

import sglang
from sglang.srt.entrypoints.engine import Engine

INTERVAL = 8
"""Tokens an event (--stream-interval): an offline user takes whole answers; steps are counted in such portions."""


class Ours:
    """See protocol.Contender."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._clock = clock_of(order)
        self._most = order["most_tokens"]
        settings = {
            "model_path": order["model"],
            "threads": order["threads"],
            "max_running_requests": order["most_rows"],
            "max_total_tokens": order["pool_tokens"],
            "chunked_prefill_size": order["chunk"],
            "stream_interval": INTERVAL,
            "log_level": "warning",
            "grammar_warmup": False,  # nobody else loads a grammar library
        } | order.get("flags", {})
        self._engine = Engine(**settings)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._news = threading.Condition()
        self._rows: list[asyncio.Task[None]] = []
        self._tokens: list[list[int]] = []
        self.version = f"this engine, chunk {order['chunk']}"

    def prefill(self, prompt: list[int]) -> float:
        began = self._clock()
        self._engine.generate(input_ids=prompt, sampling_params=self._sampling(1))
        return self._clock() - began

    def open(self, prompts: list[list[int]]) -> list[int]:
        self.keep(0)
        self._tokens = [[] for _ in prompts]
        self._rows = [
            asyncio.run_coroutine_threadsafe(self._start(i, prompt), self._loop).result()
            for i, prompt in enumerate(prompts)
        ]
        self._wait(1, len(prompts))
        return [tokens[0] for tokens in self._tokens]

    async def _start(self, index: int, prompt: list[int]) -> "asyncio.Task[None]":
        return asyncio.create_task(self._follow(index, prompt))

    async def _follow(self, index: int, prompt: list[int]) -> None:
        answers = await self._engine.async_generate(
            input_ids=prompt, sampling_params=self._sampling(self._most), stream=True
        )
        assert isinstance(answers, AsyncIterator)
        async for answer in answers:
            with self._news:
                self._tokens[index] = answer["output_ids"]
                self._news.notify_all()

    def keep(self, rows: int) -> None:
        for row in self._rows[rows:]:
            self._loop.call_soon_threadsafe(row.cancel)
        del self._rows[rows:], self._tokens[rows:]

    def decode(self, steps: int) -> tuple[float, list[list[int]]]:
        """The rows go on by themselves, in step: timed is the first row, from one portion to `steps` tokens later.

        Portions of different rows end at different steps, so waiting for all of them would time up to 7 steps more.
        """
        if steps % INTERVAL:
            raise ValueError(f"steps must be a multiple of {INTERVAL}")
        self._wait(len(self._tokens[0]) + 1, 1)  # the next portion: the referee may have stopped us since the last
        began, start = self._clock(), len(self._tokens[0])
        self._wait(start + steps, 1)
        seconds = self._clock() - began
        return seconds, [self._tokens[0][start : start + steps]]

    def _wait(self, length: int, rows: int) -> None:
        """Until each of the first `rows` rows has `length` tokens."""
        with self._news:
            if not self._news.wait_for(lambda: all(len(tokens) >= length for tokens in self._tokens[:rows]), 300):
                raise TimeoutError(f"no {length} tokens within 300 s")

    @staticmethod
    def _sampling(tokens: int) -> dict[str, Any]:
        return {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}


if __name__ == "__main__":
    assert sglang
    sys.setswitchinterval(1e-3)
    serve(Ours)
