"""A run as a table for people and as JSON for programs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglang.bench.client import RequestOutput
from sglang.bench.kv import KVReport
from sglang.bench.metrics import Distribution, Summary

WIDTH = 52
LABEL = 42
SHOWN_ERRORS = 5


def _row(label: str, value: float | int | str) -> str:
    return f"{label + ':':<{LABEL}}{f'{value:.2f}' if isinstance(value, float) else value}"


def _title(text: str) -> str:
    return f" {text} ".center(WIDTH, "-")


def _distribution(title: str, short: str, times: Distribution) -> list[str]:
    names = {"Mean": times.mean, "Median": times.median, "P90": times.p90, "P95": times.p95, "P99": times.p99}
    return [_title(title), *(_row(f"{name} {short} (ms)", value) for name, value in names.items())]


def render_summary(summary: Summary, settings: Mapping[str, str | float | int]) -> str:
    """The table; `settings` (backend, request rate, ...) come first."""
    rows = [" Serving Benchmark Result ".center(WIDTH, "=")]
    rows += [_row(name, value) for name, value in settings.items()]
    rows.append(_row("Successful requests", summary.completed))
    if summary.failed:
        rows.append(_row("Failed requests", summary.failed))
    rows += [
        _row("Benchmark duration (s)", summary.duration),
        _row("Total input tokens", summary.total_input),
        _row("Total generated tokens", summary.total_output),
        _row("Cached input tokens", summary.cached_tokens),
        _row("Request throughput (req/s)", summary.request_throughput),
        _row("Input token throughput (tok/s)", summary.input_throughput),
        _row("Output token throughput (tok/s)", summary.output_throughput),
        _row("Peak output token throughput (tok/s)", float(summary.peak_output_throughput)),
        _row("Peak concurrent requests", summary.peak_concurrent),
        _row("Total token throughput (tok/s)", summary.total_throughput),
        _row("Concurrency", summary.concurrency),
    ]
    if summary.goodput is not None:
        rows.append(_row("Request goodput (req/s)", summary.goodput))
    rows += _distribution("End-to-End Latency", "E2E Latency", summary.e2e)
    rows += _distribution("Time to First Token", "TTFT", summary.ttft)
    rows += _distribution("Time per Output Token (excl. 1st)", "TPOT", summary.tpot)
    rows += _distribution("Inter-Token Latency", "ITL", summary.itl)
    rows += [_row("Max ITL (ms)", summary.itl.max), "=" * WIDTH]
    if summary.uncounted:
        rows.append(f"{summary.uncounted} answers came without a token count: their chunks were counted instead")
    return "\n".join(rows)


def render_kv(report: KVReport | None) -> str:
    """The KV transfer section."""
    if report is None:
        return "\n".join([_title("KV transfer"), "not counted: no prefill engine among --engine-urls"])
    return "\n".join(
        [
            _title("KV transfer"),
            _row("KV transfers", int(report.transfers)),
            _row("KV moved (GB)", f"{report.gb_moved:.3f}"),
            _row("KV while posting (GB/s)", f"{report.gb_per_s:.3f}"),
            _row("KV posted before its forward ended (%)", f"{report.early_share * 100:.1f}"),
        ]
    )


def render_errors(outputs: Sequence[RequestOutput]) -> str:
    """The distinct errors, most frequent first; empty without one."""
    counts: dict[str, int] = {}
    for output in outputs:
        if output.error:
            counts[output.error] = counts.get(output.error, 0) + 1
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    lines = [f"{count} x {error}" for error, count in ranked[:SHOWN_ERRORS]]
    if len(ranked) > SHOWN_ERRORS:
        lines.append(f"and {len(ranked) - SHOWN_ERRORS} other kinds of error")
    return "\n".join(lines)


def to_json(
    summary: Summary,
    settings: Mapping[str, object],
    outputs: Sequence[RequestOutput],
    details: bool,
    kv: KVReport | None = None,
) -> dict[str, Any]:
    """One flat object, under the keys that SGLang's result files use. Times in ms; in the details, in seconds."""
    result: dict[str, Any] = dict(settings)
    result |= {
        "duration": summary.duration,
        "completed": summary.completed,
        "failed": summary.failed,
        "total_input_tokens": summary.total_input,
        "total_output_tokens": summary.total_output,
        "cached_tokens": summary.cached_tokens,
        "request_throughput": summary.request_throughput,
        "input_throughput": summary.input_throughput,
        "output_throughput": summary.output_throughput,
        "total_throughput": summary.total_throughput,
        "max_output_tokens_per_s": summary.peak_output_throughput,
        "max_concurrent_requests": summary.peak_concurrent,
        "concurrency": summary.concurrency,
        "goodput": summary.goodput,
    }
    for name, times in {
        "e2e_latency": summary.e2e,
        "ttft": summary.ttft,
        "tpot": summary.tpot,
        "itl": summary.itl,
    }.items():
        result |= {f"{part}_{name}_ms": value for part, value in asdict(times).items()}
    if kv is not None:
        result["kv"] = asdict(kv) | {"gb_per_s": kv.gb_per_s, "early_share": kv.early_share}
    if details:
        result |= {
            "input_lens": [output.prompt_len for output in outputs],
            "output_lens": [output.output_len for output in outputs],
            "ttfts": [output.ttft for output in outputs],
            "itls": [list(output.itl) for output in outputs],
            "latencies": [output.latency for output in outputs],
            "generated_texts": [output.text for output in outputs],
            "errors": [output.error for output in outputs],
        }
    return result


def append_json(path: str, result: Mapping[str, object]) -> None:
    """Append one run to a file of JSON lines."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(result) + "\n")
