"""A decode step of the real engine: its own process, scheduler, channel and trace, with every request decoding.

    python benchmark/server_step.py benchmark/shapes/qwen3-0.6b-32k --tokenizer models/SmolLM2-135M-Instruct --threads 2

Weights are random. For each batch size: tokens a second from step to step, the compute thread's time in a step, and the
gap between two steps, which is what of planning and of hearing results is not hidden behind the step before.
"""

import argparse
import itertools
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sglang.srt.config.model import read_model_spec
from sglang.srt.entrypoints.engine import Engine

TOKENIZER_VOCABULARY = 49152
"""SmolLM2's, which the model must have room for."""


def steps_of(trace: Path, rows: int) -> list[tuple[float, float]]:
    """(start, duration) in microseconds of each step that decodes `rows` rows and nothing else."""
    lines = [json.loads(line.rstrip(",\n")) for line in trace.read_text(encoding="utf-8").splitlines()[1:]]
    found = [line for line in lines if line["ph"] == "X" and line["name"].startswith("step ")]
    return [(s["ts"], s["dur"]) for s in found if s["args"]["rows"] == rows and s["args"]["prompt"] == 0]


def report(rows: int, steps: Sequence[tuple[float, float]]) -> str:
    """One line."""
    periods = [b[0] - a[0] for a, b in itertools.pairwise(steps)]
    gaps = sorted(b[0] - a[0] - a[1] for a, b in itertools.pairwise(steps))
    period, duration = statistics.median(periods), statistics.median(duration for _, duration in steps)
    return (
        f"rows {rows:2}: {rows / period * 1e6:6.1f} tok/s, a step every {period / 1e3:.2f} ms, of which the compute "
        f"thread {duration / 1e3:.2f}; gap median {statistics.median(gaps):.0f} us, "
        f"p95 {gaps[int(len(gaps) * 0.95)]:.0f} us ({len(steps)} steps)"
    )


def vocabulary(model: Path) -> int:
    """Of the engine that make_engine makes."""
    return max(TOKENIZER_VOCABULARY, read_model_spec(model).vocab_size)


def make_engine(
    model: Path, tokenizer: Path, threads: int, rows: int, row_tokens: int, trace: Path | None, *, eager: bool = False
) -> Engine:
    """An engine of random weights for `rows` requests of `row_tokens` tokens each."""
    return Engine(
        model_path=str(model), tokenizer_path=str(tokenizer), load_format="dummy", dtype="bfloat16",
        json_model_override_args=json.dumps({"vocab_size": vocabulary(model)}), threads=threads,
        max_total_tokens=rows * row_tokens, max_running_requests=rows, chunked_prefill_size=512, log_level="warning",
        disable_cuda_graph=eager,
        trace_file=str(trace) if trace else "", grammar_warmup=False,  # it would take a core for seconds
    )  # fmt: skip


def random_prompts(model: Path, rows: int, length: int) -> list[list[int]]:
    """`rows` prompts of `length` tokens."""
    return [random.Random(row).choices(range(vocabulary(model)), k=length) for row in range(rows)]


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line a batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--eager", action="store_true", help="compute steps call by call (--disable-cuda-graph)")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        for rows in args.rows:
            trace = Path(folder) / f"{rows}.json"
            size = (rows, args.context + 64)
            with make_engine(args.model, args.tokenizer, args.threads, *size, trace, eager=args.eager) as engine:
                engine.generate(
                    input_ids=random_prompts(args.model, rows, args.context - args.steps // 2),
                    sampling_params={"temperature": 0, "max_new_tokens": args.steps, "ignore_eos": True},
                )
            print(report(rows, steps_of(trace, rows)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
