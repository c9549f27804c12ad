"""The arithmetic of a run: throughput, latency distributions, goodput."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sglang.bench.client import RequestOutput


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of times in milliseconds; all zero where there are none. Percentiles are interpolated linearly."""

    mean: float = 0.0
    median: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @staticmethod
    def of(seconds: Sequence[float]) -> "Distribution":
        """The distribution of times given in seconds."""
        if not seconds:
            return Distribution()
        ms = np.asarray(seconds, dtype=np.float64) * 1e3
        median, p90, p95, p99 = (float(value) for value in np.percentile(ms, (50, 90, 95, 99)))
        return Distribution(float(ms.mean()), median, p90, p95, p99, float(ms.max()))


@dataclass(frozen=True, slots=True)
class Summary:
    """One run in figures. Rates are per second of `duration`."""

    completed: int
    failed: int
    duration: float
    total_input: int
    total_output: int
    request_throughput: float
    input_throughput: float
    output_throughput: float
    total_throughput: float
    peak_output_throughput: int
    """Most output tokens within one second, seconds counted from the first request."""
    peak_concurrent: int
    concurrency: float
    """Requests in flight, averaged over the run."""
    e2e: Distribution
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    cached_tokens: int
    uncounted: int
    """Answers whose output length had to be taken from their chunks."""
    goodput: float | None
    """Requests per second that met every objective; None where there are no objectives."""


def tpot(output: RequestOutput) -> float | None:
    """Time per output token after the first, in seconds; None for an answer of one token."""
    if output.output_len < 2:
        return None
    return (output.latency - output.ttft) / (output.output_len - 1)


def summarise(
    outputs: Sequence[RequestOutput], duration: float, objectives: Mapping[str, float] | None = None
) -> Summary:
    """Figures of the answered requests; failed ones are only counted.

    `objectives` are upper bounds in milliseconds for `ttft`, `tpot` and `e2el`.
    """
    done = [output for output in outputs if output.ok]
    span = max(duration, 1e-9)
    total_input, total_output = sum(o.prompt_len for o in done), sum(o.output_len for o in done)
    good = sum(_good(output, objectives) for output in done) if objectives else 0
    return Summary(
        completed=len(done),
        failed=len(outputs) - len(done),
        duration=duration,
        total_input=total_input,
        total_output=total_output,
        request_throughput=len(done) / span,
        input_throughput=total_input / span,
        output_throughput=total_output / span,
        total_throughput=(total_input + total_output) / span,
        peak_output_throughput=_peak_tokens(done),
        peak_concurrent=_peak_concurrent(done),
        concurrency=sum(output.latency for output in done) / span,
        e2e=Distribution.of([output.latency for output in done]),
        ttft=Distribution.of([output.ttft for output in done]),
        tpot=Distribution.of([time for output in done if (time := tpot(output)) is not None]),
        itl=Distribution.of([gap for output in done for gap in output.itl]),
        cached_tokens=sum(output.cached_tokens for output in done),
        uncounted=sum(not output.counted_by_server for output in done),
        goodput=good / span if objectives else None,
    )


def _good(output: RequestOutput, objectives: Mapping[str, float]) -> bool:
    times = {"ttft": output.ttft, "tpot": tpot(output) or 0.0, "e2el": output.latency}
    return all(times[name] * 1e3 <= bound for name, bound in objectives.items())


def _peak_tokens(done: Sequence[RequestOutput]) -> int:
    if not done:
        return 0
    start = min(output.sent_at for output in done)
    arrivals = np.concatenate([output.sent_at + np.cumsum([output.ttft, *output.itl]) for output in done])
    return int(np.bincount((arrivals - start).astype(np.int64)).max())


def _peak_concurrent(done: Sequence[RequestOutput]) -> int:
    # at equal times an end (-1) sorts before a start (+1)
    changes = sorted([(o.sent_at, 1) for o in done] + [(o.sent_at + o.latency, -1) for o in done])
    return int(np.cumsum([change for _, change in changes]).max()) if changes else 0
