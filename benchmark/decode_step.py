"""How long does a decode step take on this CPU, and where does it go? One runner, no server.

    python benchmark/decode_step.py MODEL [--rows 1 8] [--context 512] [--threads 1] [--attention auto] [--profile]

Prompts are drawn at random and prefilled, then every row decodes. Of each batch size: the fastest and the median step,
by the wall clock and by the thread's CPU time (which other processes cannot lengthen, except through caches), the bytes
a step must read (weights and KV), and what share of this machine's read bandwidth that makes.
"""

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
from sglang.srt.kv_pool.base import KVPool
from sglang.srt.model_executor.build import build_runner
from sglang.srt.model_executor.hooks import NullHook
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.model_executor.options import WorkerOptions

CHUNK = 512


class Rows:
    """Requests that decode in lockstep; just enough of a scheduler."""

    def __init__(self, runner: ModelRunner, pool: KVPool, vocab: int, rows: int, context: int) -> None:
        self._runner = runner
        self._page_size = pool.layout.kv.page_size
        self._free = list(range(pool.layout.num_pages))
        random.Random(0).shuffle(self._free)
        self._held = [0] * rows
        self._length = context
        self._step = 0
        prompts = [tuple(random.Random(row).choices(range(vocab), k=context)) for row in range(rows)]
        opened = tuple(RowOpen(slot=row, sampling=SamplingParams(temperature=0.0), seed=0) for row in range(rows))
        self._run((), opened)
        for row, prompt in enumerate(prompts):
            for start in range(0, context, CHUNK):
                tokens = prompt[start : start + CHUNK]
                self._run((self._row(row, start, tokens, last=start + CHUNK >= context),))

    def decode(self) -> None:
        """One step."""
        self._run(tuple(self._row(row, self._length, (), last=True) for row in range(len(self._held))))
        self._length += 1

    def close(self) -> None:
        """Give the slots back."""
        self._run((), closed=tuple(range(len(self._held))))

    def _row(self, slot: int, start: int, tokens: tuple[int, ...], *, last: bool) -> StepRow:
        length = len(tokens) or 1
        wanted = -(-(start + length) // self._page_size)
        new = tuple(self._free.pop() for _ in range(wanted - self._held[slot]))
        self._held[slot] = wanted
        return StepRow(slot=slot, start=start, length=length, tokens=tokens, new_pages=new, sample=last)

    def _run(self, rows: tuple[StepRow, ...], opened: tuple[RowOpen, ...] = (), closed: tuple[int, ...] = ()) -> None:
        self._step += 1
        self._runner.execute(StepPlan(step_id=self._step, rows=rows, opened=opened, closed=closed))


def read_bandwidth() -> float:
    """GB/s at which the threads read 512 MB from memory, by the calling thread's CPU time; the fastest of seven."""
    words = torch.ones(64 << 20, dtype=torch.int64)
    times = []
    for _ in range(7):
        start = time.thread_time()
        words.sum()
        times.append(time.thread_time() - start)
    return words.nbytes / min(times) / 1e9


def step_bytes(folder: Path, spec: ModelSpec, pool: KVPool, rows: int, context: int) -> int:
    """What a step must read: every weight once (not the table of an untied embedding), and the rows' KV.

    Takes the checkpoint as bfloat16.
    """
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if not spec.tie_word_embeddings:
        weights -= spec.vocab_size * spec.hidden_size * 2
    page = pool.nbytes // pool.layout.num_pages
    return weights + rows * context * page // pool.layout.kv.page_size


def measure(rows: Rows, steps: int) -> tuple[list[float], list[float]]:
    """Wall and CPU milliseconds of each step."""
    wall: list[float] = []
    own: list[float] = []
    for _ in range(steps):
        clock, thread = time.perf_counter(), time.thread_time()
        rows.decode()
        wall.append((time.perf_counter() - clock) * 1e3)
        own.append((time.thread_time() - thread) * 1e3)
    return wall, own


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line a batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--attention", choices=["auto", "cpu", "torch_native"], default="auto")
    parser.add_argument("--profile", action="store_true", help="show torch's and Python's shares of a step")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    spec = read_model_spec(args.model)
    tokens = max(args.rows) * (args.context + 2 * args.steps + 64)
    options = WorkerOptions(
        dtype="bfloat16", max_total_tokens=tokens, max_running_requests=max(args.rows), attention_backend=args.attention
    )
    runner, pool = build_runner(args.model, spec, options, NullHook())
    bandwidth = read_bandwidth()
    print(f"{torch.get_num_threads()} threads, memory read {bandwidth:.1f} GB/s")
    for count in args.rows:
        rows = Rows(runner, pool, spec.vocab_size, count, args.context)
        measure(rows, 3)
        wall, own = measure(rows, args.steps)
        needed = step_bytes(args.model, spec, pool, count, args.context)
        share = needed / bandwidth / 1e6 / min(own)
        print(
            f"rows {count:2}: wall fastest {min(wall):6.2f} median {statistics.median(wall):6.2f} ms, "
            f"cpu fastest {min(own):6.2f} median {statistics.median(own):6.2f} ms, "
            f"{needed / 1e6:.0f} MB, {share:.0%} of the read bandwidth"
        )
        if args.profile:
            profile(rows)
        rows.close()
    return 0


def profile(rows: Rows) -> None:
    """cProfile of 20 steps, by own time: each native kernel and torch operation is a line of its own."""
    import cProfile
    import pstats

    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(20):
        rows.decode()
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(22)


if __name__ == "__main__":
    sys.exit(main())
