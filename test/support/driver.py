"""A scheduler in thirty lines, to drive a ModelRunner without the engine around it."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import torch

from sglang.srt.config.model import read_model_spec
from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.step import RowOpen, SampledToken, StepPlan, StepResult, StepRow
from sglang.srt.kv_pool.base import KVPool
from sglang.srt.model_executor.build import build_runner
from sglang.srt.model_executor.hooks import LayerHook, NullHook
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.model_executor.options import WorkerOptions

GREEDY = SamplingParams(temperature=0.0, logprobs=True)


@dataclass
class Request:
    """One request on its way through the driver."""

    prompt: list[int]
    count: int
    sampling: SamplingParams = GREEDY
    seed: int = 0
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    sampled: list[SampledToken] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """What was generated."""
        return [sample.token for sample in self.sampled]

    @property
    def logprobs(self) -> list[float]:
        """Their log probabilities."""
        return [sample.logprob for sample in self.sampled if sample.logprob is not None]


class Driver:
    """Runs requests with chunked prefill and continuous batching over shuffled, poisoned pages."""

    def __init__(
        self, folder: Path, *, page_size: int, pages: int = 0, dtype: str = "float32", rows: int = 32,
        hook: LayerHook | None = None, context: int = 0, kv_dtype: str = "auto",
        load_format: str = "auto", graph_rows: int | None = None, quantization: str = "none",
    ) -> None:  # fmt: skip
        spec = read_model_spec(folder)
        options = WorkerOptions(
            dtype=dtype, kv_cache_dtype=kv_dtype, load_format=load_format, page_size=page_size,
            max_running_requests=rows, max_context=context, graph_rows=graph_rows, quantization=quantization,
            max_total_tokens=(pages or 4096 // page_size + 64) * page_size,
        )  # fmt: skip
        self.runner: ModelRunner
        self.pool: KVPool
        self.runner, self.pool = build_runner(folder, spec, options, hook or NullHook())
        self.pool.poison()
        self.page_size = page_size
        self.free = list(range(self.pool.layout.num_pages))
        random.Random(page_size).shuffle(self.free)
        self.step_id = 0

    def execute(
        self, rows: list[StepRow], opened: tuple[RowOpen, ...] = (), closed: tuple[int, ...] = ()
    ) -> StepResult:
        """One step."""
        self.step_id += 1
        return self.runner.execute(StepPlan(step_id=self.step_id, rows=tuple(rows), opened=opened, closed=closed))

    def take(self, tokens: int, held: int) -> tuple[int, ...]:
        """New pages so that `tokens` tokens fit where `held` pages are held already."""
        return tuple(self.free.pop() for _ in range(-(-tokens // self.page_size) - held))

    def run(self, requests: list[Request], *, chunk: int, feed_back: bool = True) -> None:
        """Decode rows first, then prompt chunks up to `chunk` tokens a step; every second token travels through us."""
        opened = tuple(RowOpen(slot=i, sampling=r.sampling, seed=r.seed) for i, r in enumerate(requests))
        while live := [(i, r) for i, r in enumerate(requests) if len(r.sampled) < r.count]:
            room = chunk
            rows: list[StepRow] = []
            for slot, request in sorted(live, key=lambda pair: pair[1].computed < len(pair[1].prompt)):
                row = self._row(slot, request, room, feed_back)
                if row is not None:
                    rows.append(row)
                    room -= row.length if row.start < len(request.prompt) else 0
            result = self.execute(rows, opened)
            opened = ()
            for sample in result.sampled:
                requests[sample.slot].sampled.append(sample)
        for request in requests:
            self.free[:0] = request.pages
        self.execute([], closed=tuple(range(len(requests))))

    def _row(self, slot: int, request: Request, room: int, feed_back: bool) -> StepRow | None:
        start, prompt = request.computed, request.prompt
        if start >= len(prompt):
            known = feed_back and len(request.sampled) % 2 == 0
            tokens, length = ((request.tokens[-1],) if known else ()), 1
        else:
            length = min(room, len(prompt) - start)
            tokens = tuple(prompt[start : start + length])
        if length == 0:
            return None
        new = self.take(start + length, len(request.pages))
        request.pages.extend(new)
        request.computed += length
        sample = request.computed >= len(prompt)
        return StepRow(slot=slot, start=start, length=length, tokens=tokens, new_pages=new, sample=sample)


class RecordingHook:
    """Remembers the layers it heard of."""

    def __init__(self) -> None:
        self.layers: list[int] = []

    def after_attention(self, layer: int) -> None:
        self.layers.append(layer)


def kv_of(driver: Driver, pages: list[int], tokens: int) -> torch.Tensor:
    """The KV of a row's tokens, `[layers, kv_heads, 2, tokens, head_dim]`."""
    layers = [driver.pool.layer(i)[pages] for i in range(driver.pool.layout.kv.layers)]
    stacked = torch.stack(layers).permute(0, 2, 3, 1, 4, 5)
    return stacked.flatten(3, 4)[:, :, :, :tokens]
