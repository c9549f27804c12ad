"""What `--quantization w8a16` costs in quality: perplexity of a model over real text, with and without it.

    python benchmark/perplexity.py models/SmolLM2-135M-Instruct [--windows 40]

The text is the language reference that Python carries (`pydoc_data.topics`), cut into windows of 512 tokens; each token
but a window's first is scored by the executor itself, as prompt log probabilities are.
"""

import argparse
import math
import pydoc_data.topics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import torch

from sglang.srt.config.model import read_model_spec
from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.step import RowOpen, StepPlan, StepRow
from sglang.srt.managers.tokenizer import Tokenizer
from sglang.srt.model_executor.build import build_runner
from sglang.srt.model_executor.hooks import NullHook
from sglang.srt.model_executor.options import WorkerOptions

WINDOW = 512


def windows(folder: Path, count: int) -> Iterator[tuple[int, ...]]:
    """Token ids of consecutive windows."""
    text = "\n\n".join(str(topic) for topic in pydoc_data.topics.topics.values())
    tokens = Tokenizer.load(str(folder), str(folder)).encode(text[: count * WINDOW * 8], add_special_tokens=False)
    for start in range(0, len(tokens) - WINDOW, WINDOW)[:count]:
        yield tuple(tokens[start : start + WINDOW])


def perplexity(folder: Path, options: WorkerOptions, texts: Sequence[tuple[int, ...]]) -> float:
    """exp of the mean negative log probability."""
    options = msgspec.structs.replace(options, max_total_tokens=2 * WINDOW, max_running_requests=1)
    runner, _ = build_runner(folder, read_model_spec(folder), options, NullHook())
    pages = tuple(range(WINDOW // options.page_size))
    sampling = SamplingParams(temperature=0.0)
    total, step = 0.0, 0
    for tokens in texts:
        row = StepRow(slot=0, start=0, length=WINDOW, tokens=tokens, new_pages=pages, scores=tokens[1:])
        opened = (RowOpen(slot=0, sampling=sampling, seed=0),)
        result = runner.execute(StepPlan(step_id=step, rows=(row,), opened=opened))
        runner.execute(StepPlan(step_id=step + 1, rows=(), closed=(0,)))
        step += 2
        total += sum(score.logprob for score in result.scored[0])
    return math.exp(-total / (len(texts) * (WINDOW - 1)))


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line a kind of weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    texts = list(windows(args.model, args.windows))
    print(f"{len(texts)} windows of {WINDOW} tokens")
    kinds = {
        "float32": WorkerOptions(dtype="float32"),
        "bfloat16": WorkerOptions(dtype="bfloat16"),
        "w8a16": WorkerOptions(dtype="bfloat16", quantization="w8a16"),
    }
    found = {name: perplexity(args.model, options, texts) for name, options in kinds.items()}
    for name, value in found.items():
        print(f"{name:9} perplexity {value:.4f}, {value / found['float32'] - 1:+.3%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
