"""`python -m sglang.bench_offline_throughput`: how fast the engine answers when everything is there at once."""

import argparse
import sys
import time
from collections.abc import Sequence

import msgspec

from sglang.bench.dataset import DatasetOptions, Prompt, load_dataset
from sglang.bench.tokenizer import load_tokenizer
from sglang.srt.config.cli import parse
from sglang.srt.config.server import ServerConfig
from sglang.srt.entrypoints.engine import Engine
from sglang.srt.errors import ConfigError, SglangError


def measure(engine: Engine, prompts: Sequence[Prompt]) -> dict[str, float]:
    """Token counts and rates of answering all `prompts` in one call."""
    sampling = [{"temperature": 0, "max_new_tokens": p.output_len, "ignore_eos": True} for p in prompts]
    as_ids = prompts[0].token_ids is not None
    ids = [list(prompt.token_ids or ()) for prompt in prompts] if as_ids else None
    texts = None if as_ids else [prompt.text for prompt in prompts]
    began = time.perf_counter()
    answers = engine.generate(texts, sampling, ids)
    seconds = time.perf_counter() - began
    assert isinstance(answers, list)
    read = sum(answer["meta_info"]["prompt_tokens"] for answer in answers)
    written = sum(answer["meta_info"]["completion_tokens"] for answer in answers)
    return {
        "Successful requests": len(answers),
        "Benchmark duration (s)": seconds,
        "Total input tokens": read,
        "Total generated tokens": written,
        "Request throughput (req/s)": len(answers) / seconds,
        "Input token throughput (tok/s)": read / seconds,
        "Output token throughput (tok/s)": written / seconds,
        "Total token throughput (tok/s)": (read + written) / seconds,
    }


def report(figures: dict[str, float]) -> str:
    """The figures as SGLang's users know them."""
    lines = ["", f"{' Offline Throughput Benchmark Result ':=^60}"]
    lines += [f"{name + ':':<42}{value:>16,.2f}" for name, value in figures.items()]
    return "\n".join([*lines, "=" * 60, ""])


def main(argv: Sequence[str] | None = None) -> int:
    """Flags that are not the benchmark's are the engine's. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="sglang bench-offline-throughput", description=__doc__, allow_abbrev=False)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--dataset-name", default="random", choices=["random", "random-ids", "sharegpt", "custom"])
    parser.add_argument("--dataset-path", default="")
    parser.add_argument("--num-prompts", type=int, default=16)
    parser.add_argument("--random-input-len", type=int, default=128)
    parser.add_argument("--random-output-len", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip-warmup", action="store_true")
    parser.add_argument("--disagg", action="store_true", help="Compute prompts on a second engine.")
    mine, flags = parser.parse_known_args(sys.argv[1:] if argv is None else list(argv))
    options = DatasetOptions(
        name=mine.dataset_name,
        path=mine.dataset_path,
        num_prompts=mine.num_prompts,
        seed=mine.seed,
        random_input_len=mine.random_input_len,
        random_output_len=mine.random_output_len,
        random_range_ratio=1.0,
    )
    try:
        prompts = load_dataset(options, load_tokenizer(mine.model_path))
        config = parse(["--model-path", mine.model_path, "--log-level", "warning", *flags])
        plain = msgspec.to_builtins(ServerConfig(model_path=""))
        given = {name: value for name, value in msgspec.to_builtins(config).items() if value != plain[name]}
        with Engine(disagg=mine.disagg, **given) as engine:
            if not mine.skip_warmup:
                measure(engine, prompts[:2])
                engine.flush_cache()
            sys.stdout.write(report(measure(engine, prompts)))
    except ConfigError as error:
        sys.stderr.write(f"sglang bench-offline-throughput: {error}\n")
        return 2
    except SglangError as error:
        sys.stderr.write(f"sglang bench-offline-throughput: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
