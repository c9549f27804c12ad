"""What a decode step and a prompt cost, without server and scheduler, and what share that is of this machine's limits.

    python benchmark/decode_step.py benchmark/shapes/qwen3-0.6b-32k --load-format dummy --threads 2 [--profile]
    python benchmark/decode_step.py models/SmolLM2-135M-Instruct --rows 1 8

A decode step runs rows of equal context through the executor, as the scheduler's loop would. Its limit is the time to
read the weights or to multiply them, whichever is longer, and the time to read the rows' KV. A prompt's limit is its
arithmetic: products with the weights (no logits) and causal attention. `--gigabytes` and `--gigaflops` are what the
machine gives a program of `--threads` threads: by default what machine_limits.py measured with all cores.
Times are by the wall clock; on a busy machine read the thread's CPU time beside it, with one thread.
"""

import argparse
import cProfile
import os
import pstats
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from peers.limits import of_this_machine
from sglang.srt.config.hardware import child_environment
from sglang.srt.config.model import ModelSpec, read_model_spec
from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.step import RowOpen, StepPlan, StepRow
from sglang.srt.kv_pool.base import KVPool
from sglang.srt.model_executor.build import build_runner
from sglang.srt.model_executor.hooks import NullHook
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.model_executor.options import WorkerOptions

CHUNK = 512
TURN = 3
"""Steps in a row of one kind, where two kinds take turns."""


class Limits(NamedTuple):
    """What the machine gives, and what a model asks of it."""

    bandwidth: float
    """Bytes a second."""
    flops: float
    """bfloat16 operations a second."""
    weights: int
    """Elements that each token multiplies, the head's included."""
    head: int
    """Elements of the head."""
    kv_bytes: int
    """A token's KV."""
    attention: int
    """Operations a token and key."""
    expert: int = 0
    """Elements of one expert of every sparse layer; 0 for a dense model."""
    experts: int = 1
    top_k: int = 1

    def held(self, hit: float) -> float:
        """Elements of the weights with so many experts a layer."""
        return self.weights + (hit - self.top_k) * self.expert

    def decode(self, rows: int, context: int) -> float:
        """Seconds of a step. Rows choose experts at random: n rows hit a share of `1 - (1 - top_k / experts)^n`."""
        hit = self.experts * (1 - (1 - self.top_k / self.experts) ** rows)
        multiply = max(2 * self.held(hit) / self.bandwidth, 2 * self.weights * rows / self.flops)
        return multiply + rows * context * self.kv_bytes / self.bandwidth

    def prefill(self, tokens: int) -> float:
        """Seconds of a prompt."""
        per_token = 2 * (self.weights - self.head) + self.attention * (tokens + 1) / 2
        return tokens * per_token / self.flops


class Requests:
    """A runner's pages, slots and step numbers; just enough of a scheduler."""

    def __init__(self, runner: ModelRunner, pool: KVPool, vocab: int) -> None:
        self._runner = runner
        self._vocab = vocab
        self._page_size = pool.layout.kv.page_size
        self._pages = list(range(pool.layout.num_pages))
        random.Random(0).shuffle(self._pages)
        self._free = list(self._pages)
        self._held: list[int] = []
        self._step = 0

    def open(self, rows: int) -> None:
        """Take slots 0 .. rows - 1."""
        self._held = [0] * rows
        opened = tuple(RowOpen(slot=row, sampling=SamplingParams(temperature=0.0), seed=0) for row in range(rows))
        self._run((), opened)

    def prompt(self, slot: int, length: int) -> None:
        """Compute a random prompt in chunks; its last chunk samples."""
        tokens = tuple(random.Random(slot).choices(range(self._vocab), k=length))
        for start in range(0, length, CHUNK):
            chunk = tokens[start : start + CHUNK]
            self._run((self._row(slot, start, chunk, last=start + CHUNK >= length),))

    def decode(self, length: int) -> None:
        """One step of all rows, which have `length` tokens each."""
        self._run(tuple(self._row(row, length, (), last=True) for row in range(len(self._held))))

    def close(self) -> None:
        """Give slots and pages back."""
        self._run((), closed=tuple(range(len(self._held))))
        self._free = list(self._pages)

    def _row(self, slot: int, start: int, tokens: tuple[int, ...], *, last: bool) -> StepRow:
        length = len(tokens) or 1
        wanted = -(-(start + length) // self._page_size)
        new = tuple(self._free.pop() for _ in range(wanted - self._held[slot]))
        self._held[slot] = wanted
        return StepRow(slot=slot, start=start, length=length, tokens=tokens, new_pages=new, sample=last)

    def _run(self, rows: tuple[StepRow, ...], opened: tuple[RowOpen, ...] = (), closed: tuple[int, ...] = ()) -> None:
        self._step += 1
        self._runner.execute(StepPlan(step_id=self._step, rows=rows, opened=opened, closed=closed))


def limits(spec: ModelSpec, pool: KVPool, bandwidth: float, flops: float) -> Limits:
    """Of a model with grouped-query attention and no shared experts."""
    heads, dim = spec.num_heads, spec.head_dim
    attention = spec.hidden_size * dim * 2 * (heads + spec.num_kv_heads)
    sparse = len(spec.moe.layers) if spec.moe else 0
    expert = 3 * spec.hidden_size * spec.moe.intermediate * sparse if spec.moe else 0
    experts, top_k = (spec.moe.experts, spec.moe.top_k) if spec.moe else (1, 1)
    dense = 3 * spec.hidden_size * spec.intermediate_size * (spec.num_layers - sparse)
    head = spec.vocab_size * spec.hidden_size
    kv_bytes = pool.nbytes // pool.layout.num_pages // pool.layout.kv.page_size
    weights = spec.num_layers * attention + dense + top_k * expert + head
    work = 4 * heads * dim * spec.num_layers
    return Limits(bandwidth, flops, weights, head, kv_bytes, work, expert, experts, top_k)


def decode(
    requests: Requests, rows: int, context: int, steps: int, before: Callable[[int], None] = lambda step: None
) -> tuple[list[float], list[float]]:
    """Wall and CPU seconds of each step, at contexts around `context`; `before` hears of each."""
    requests.open(rows)
    first = context - steps // 2
    for slot in range(rows):
        requests.prompt(slot, first)
    wall: list[float] = []
    own: list[float] = []
    for step in range(steps):
        before(step)
        clock, thread = time.perf_counter(), time.thread_time()
        requests.decode(first + step)
        wall.append(time.perf_counter() - clock)
        own.append(time.thread_time() - thread)
    return wall[2:], own[2:]


def eager_in_turn(runner: ModelRunner, requests: Requests, rows: int, context: int, steps: int) -> str:
    """Steps of one run, three as recorded and three call by call in turn."""
    graph = runner._graph

    def is_eager(step: int) -> bool:
        return step // TURN % 2 == 1

    def choose(step: int) -> None:
        runner._graph = None if is_eager(step) else graph

    wall, _ = decode(requests, rows, context, 2 * steps, choose)
    runner._graph = graph
    kinds = {eager: [t for step, t in enumerate(wall, 2) if is_eager(step) is eager] for eager in (False, True)}
    recorded, eager = (statistics.median(times) * 1e3 for times in kinds.values())
    return f"recorded {recorded:.2f} ms, call by call {eager:.2f} ms ({eager / recorded:.2f})"


def prefill(requests: Requests, length: int, rounds: int) -> tuple[list[float], list[float]]:
    """Wall and CPU seconds of a prompt."""
    wall: list[float] = []
    own: list[float] = []
    for _ in range(rounds):
        requests.open(1)
        clock, thread = time.perf_counter(), time.thread_time()
        requests.prompt(0, length)
        wall.append(time.perf_counter() - clock)
        own.append(time.thread_time() - thread)
        requests.close()
    return wall[1:], own[1:]


def report(name: str, tokens: int, limit: float, times: tuple[list[float], list[float]]) -> None:
    """Print a line: the median decides."""
    wall, own = times
    middle = statistics.median(wall)
    print(
        f"{name}: {tokens / middle:6.1f} tok/s, {limit / middle:4.0%} of the limit {tokens / limit:5.1f}; "
        f"median {middle * 1e3:7.2f} fastest {min(wall) * 1e3:7.2f} ms, limit {limit * 1e3:7.2f}; "
        f"thread's CPU time median {statistics.median(own) * 1e3:7.2f} fastest {min(own) * 1e3:7.2f} ms",
        flush=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line a batch size and one a prompt length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--load-format", choices=["auto", "dummy"], default="auto")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--prefill", type=int, nargs="*", default=[512, 2048])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=4, help="runs of each prompt; the first is not counted")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cores", type=int, nargs="*", default=[], help="pin to these")
    parser.add_argument("--quantization", choices=["none", "w8a16"], default="none")
    parser.add_argument("--attention", choices=["auto", "cpu", "torch_native"], default="auto")
    parser.add_argument("--gigabytes", type=float, help="a second that the threads read")
    parser.add_argument("--gigaflops", type=float, help="that they multiply")
    parser.add_argument("--eager", action="store_true", help="compare recorded steps with those made call by call")
    parser.add_argument("--profile", action="store_true", help="show torch's and Python's shares of a step")
    args = parser.parse_args(argv)
    wanted = child_environment(args.threads)
    if argv is None and any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], wanted)  # libraries read it once, when they are loaded
    if args.cores:
        os.sched_setaffinity(0, args.cores)
    torch.set_num_threads(args.threads)
    spec = read_model_spec(args.model)
    longest = max([args.context + args.steps, *args.prefill])
    options = WorkerOptions(
        dtype="bfloat16", load_format=args.load_format, max_running_requests=max([1, *args.rows]),
        max_total_tokens=max(max([1, *args.rows]) * (args.context + 2 * args.steps + 64), longest + 64),
        attention_backend=args.attention, quantization=args.quantization,
    )  # fmt: skip
    runner, pool = build_runner(args.model, spec, options, NullHook())
    limit = limits(
        spec, pool,
        args.gigabytes * 1e9 if args.gigabytes else of_this_machine().bytes_per_s,
        args.gigaflops * 1e9 if args.gigaflops else of_this_machine().flops,
    )  # fmt: skip
    requests = Requests(runner, pool, spec.vocab_size)
    weights = 2 * limit.held(limit.experts)
    print(f"{spec.num_layers} layers, {weights / 1e6:.0f} MB of weights, {torch.get_num_threads()} threads")
    for rows in args.rows:
        name = f"decode {rows:2} rows at {args.context}"
        report(name, rows, limit.decode(rows, args.context), decode(requests, rows, args.context, args.steps))
        if args.profile:
            profile(requests, args.context + args.steps // 2)
        requests.close()
        if args.eager:
            print(f"{name}: {eager_in_turn(runner, requests, rows, args.context, args.steps)}", flush=True)
            requests.close()
    for length in args.prefill:
        report(f"prefill {length:4}", length, limit.prefill(length), prefill(requests, length, args.rounds))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    held = weights + pool.nbytes
    print(
        f"memory at most {memory / 1e6:.0f} MB: weights and KV {held / 1e6:.0f}, the rest {(memory - held) / 1e6:.0f}"
    )
    return 0


def profile(requests: Requests, context: int) -> None:
    """cProfile of 10 steps, by own time: each native kernel and torch operation is a line of its own."""
    profiler = cProfile.Profile()
    profiler.enable()
    for step in range(10):
        requests.decode(context + step)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    sys.exit(main())
