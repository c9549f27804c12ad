"""Benchmark of a running server: `python -m sglang.bench_serving --backend sglang --dataset-name random ...`."""

import asyncio
import sys
from collections.abc import Sequence

from rich.console import Console

from sglang.bench.options import BenchOptions, parse_options
from sglang.bench.report import append_json, render_errors, render_kv, render_summary, to_json
from sglang.bench.run import BenchResult, run_benchmark
from sglang.srt.errors import ConfigError, SglangError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark; 0 where at least one request was answered, 2 for a wrong flag, 130 after Ctrl-C."""
    console = Console(stderr=True)
    try:
        options = parse_options(argv)
        result = asyncio.run(run_benchmark(options, console))
        _write(options, result)
    except KeyboardInterrupt:
        return 130
    except SglangError as error:
        sys.stderr.write(f"bench_serving: {error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    if errors := render_errors(result.outputs):
        sys.stderr.write(f"bench_serving: {result.summary.failed} requests failed:\n{errors}\n")
    return 0 if result.summary.completed else 1


def _write(options: BenchOptions, result: BenchResult) -> None:
    sys.stdout.write(render_summary(result.summary, result.settings) + "\n")
    if options.engine_urls:
        sys.stdout.write(render_kv(result.kv) + "\n")
    if options.output_file:
        settings = {
            "backend": options.backend,
            "dataset_name": options.dataset.name,
            "request_rate": str(options.request_rate) if options.request_rate == float("inf") else options.request_rate,
            "max_concurrency": options.max_concurrency,
        }
        append_json(
            options.output_file, to_json(result.summary, settings, result.outputs, options.output_details, result.kv)
        )


if __name__ == "__main__":
    sys.exit(main())
