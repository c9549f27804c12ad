"""`python -m sglang.bench_one_batch`: the model alone. One batch prefills and decodes, without scheduler or HTTP."""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from sglang.srt.config.model import ModelSpec, read_model_spec
from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.step import RowOpen, StepPlan, StepRow
from sglang.srt.errors import SglangError
from sglang.srt.model_executor.build import build_runner
from sglang.srt.model_executor.hooks import NullHook
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.model_executor.options import WorkerOptions


class Batch:
    """`rows` equal requests, driven step by step."""

    def __init__(self, runner: ModelRunner, rows: int, page_size: int, first_step: int) -> None:
        self._runner = runner
        self._rows = rows
        self._page_size = page_size
        self._step = first_step
        self._pages = [0] * rows
        self._next_page = 0

    def prefill(self, prompt: list[int]) -> float:
        """Seconds of one step over all prompts, the first sampled token included."""
        sampling = SamplingParams(temperature=0.0)
        opened = tuple(RowOpen(slot=slot, sampling=sampling, seed=0) for slot in range(self._rows))
        rows = tuple(self._row(slot, 0, tuple(prompt)) for slot in range(self._rows))
        return self._time(StepPlan(step_id=self._take(), rows=rows, opened=opened))

    def decode(self, position: int) -> float:
        """Seconds of one decode step."""
        rows = tuple(self._row(slot, position, ()) for slot in range(self._rows))
        return self._time(StepPlan(step_id=self._take(), rows=rows))

    def close(self) -> int:
        """Free the rows; the next batch begins with the returned step."""
        self._runner.execute(StepPlan(step_id=self._take(), rows=(), closed=tuple(range(self._rows))))
        return self._step

    def _take(self) -> int:
        self._step += 1
        return self._step

    def _time(self, plan: StepPlan) -> float:
        began = time.perf_counter()
        self._runner.execute(plan)
        return time.perf_counter() - began

    def _row(self, slot: int, start: int, tokens: tuple[int, ...]) -> StepRow:
        length = len(tokens) or 1
        missing = -(-(start + length) // self._page_size) - self._pages[slot]
        new = tuple(range(self._next_page, self._next_page + missing))
        self._next_page += missing
        self._pages[slot] += missing
        return StepRow(slot=slot, start=start, length=length, tokens=tokens, new_pages=new, sample=True)


def measure(runner: ModelRunner, spec: ModelSpec, rows: int, read: int, written: int, page_size: int) -> str:
    """One line a phase."""
    rng = random.Random(0)
    prompt = [rng.randrange(spec.vocab_size) for _ in range(read)]
    batch = Batch(runner, rows, page_size, 0)
    prefill = batch.prefill(prompt)
    steps = [batch.decode(read + i) for i in range(written - 1)]
    batch.close()
    total = prefill + sum(steps)
    lines = [f"Prefill. latency: {prefill:6.5f} s, throughput: {rows * read / prefill:9.2f} token/s"]
    if steps:
        median = statistics.median(steps)
        lines.append(f"Decode.  median latency: {median:6.5f} s, median throughput: {rows / median:9.2f} token/s")
    lines.append(f"Total. latency: {total:6.3f} s, throughput: {rows * (read + written) / total:9.2f} token/s")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="sglang bench-one-batch", description=__doc__)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--batch-size", "--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--input-len", type=int, nargs="+", default=[256])
    parser.add_argument("--output-len", type=int, nargs="+", default=[16])
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--load-format", default="auto", choices=["auto", "safetensors", "dummy"])
    parser.add_argument("--page-size", type=int, default=16)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    mine = parser.parse_args(argv)
    torch.set_num_threads(mine.threads)
    most = max(mine.batch_size)
    tokens = -(-(max(mine.input_len) + max(mine.output_len)) // mine.page_size) * mine.page_size
    options = WorkerOptions(
        dtype=mine.dtype,
        load_format=mine.load_format,
        page_size=mine.page_size,
        max_total_tokens=most * tokens,
        max_running_requests=most,
        threads=mine.threads,
    )
    try:
        spec = read_model_spec(Path(mine.model_path))
        runner, _ = build_runner(Path(mine.model_path), spec, options, NullHook())
        for rows in mine.batch_size:
            for read in mine.input_len:
                for written in mine.output_len:
                    sys.stdout.write(f"\nBenchmark: batch size {rows}, input {read}, output {written}\n")
                    measure(runner, spec, rows, min(read, 16), 2, mine.page_size)  # warm-up
                    sys.stdout.write(measure(runner, spec, rows, read, written, mine.page_size))
    except SglangError as error:
        sys.stderr.write(f"sglang bench-one-batch: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
