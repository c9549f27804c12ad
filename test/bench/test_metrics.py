"""Figures against cases computed by hand."""

import pytest

from sglang.bench.client import RequestOutput
from sglang.bench.kv import KVReport, kv_report
from sglang.bench.metrics import Distribution, summarise, tpot
from sglang.bench.report import render_errors, render_kv, render_summary, to_json

FAST = RequestOutput(sent_at=10.0, latency=1.4, prompt_len=100, output_len=5, ttft=0.2, itl=(0.1, 0.2, 0.3, 0.6))
SLOW = RequestOutput(sent_at=11.0, latency=3.0, prompt_len=50, output_len=3, ttft=1.0, itl=(0.5, 1.5), cached_tokens=16)
SINGLE = RequestOutput(sent_at=14.5, latency=0.5, prompt_len=10, output_len=1, ttft=0.5, counted_by_server=False)
FAILED = RequestOutput(sent_at=10.0, latency=9.0, prompt_len=100, output_len=2, ttft=0.1, itl=(9.0,), error="gone")


def test_totals_and_rates() -> None:
    summary = summarise([FAST, SLOW, SINGLE, FAILED], duration=5.0)
    assert (summary.completed, summary.failed, summary.uncounted, summary.cached_tokens) == (3, 1, 1, 16)
    assert (summary.total_input, summary.total_output) == (160, 9)
    assert summary.request_throughput == pytest.approx(0.6)
    assert summary.input_throughput == pytest.approx(32.0)
    assert summary.output_throughput == pytest.approx(1.8)
    assert summary.total_throughput == pytest.approx(33.8)
    assert summary.concurrency == pytest.approx((1.4 + 3.0 + 0.5) / 5.0)
    assert summary.goodput is None


def test_peaks() -> None:
    summary = summarise([FAST, SLOW, SINGLE], duration=5.0)
    # first second: FAST's tokens at 0.2, 0.3, 0.5, 0.8; then 1.4 of FAST; SLOW's at 2.0, 2.5, 4.0; SINGLE's at 5.0
    assert summary.peak_output_throughput == 4
    assert summary.peak_concurrent == 2
    touching = [RequestOutput(0.0, 1.0, 1, 1, 1.0), RequestOutput(1.0, 1.0, 1, 1, 1.0)]
    assert summarise(touching, 2.0).peak_concurrent == 1


def test_latencies() -> None:
    summary = summarise([FAST, SLOW, SINGLE, FAILED], duration=5.0)
    assert tpot(FAST) == pytest.approx(0.3)
    assert tpot(SLOW) == pytest.approx(1.0)
    assert tpot(SINGLE) is None
    assert summary.tpot.mean == pytest.approx(650.0)
    assert summary.ttft.median == pytest.approx(500.0)
    assert summary.itl.max == pytest.approx(1500.0)
    assert summary.itl.mean == pytest.approx(3200.0 / 6)
    assert summary.e2e.max == pytest.approx(3000.0)


def test_percentiles_are_interpolated() -> None:
    times = Distribution.of([value / 1000 for value in range(1, 102)])
    assert (times.mean, times.median, times.p90, times.p95, times.p99, times.max) == pytest.approx(
        (51.0, 51.0, 91.0, 96.0, 100.0, 101.0)
    )
    assert Distribution.of([]) == Distribution()


def test_goodput_counts_requests_that_meet_every_objective() -> None:
    outputs = [FAST, SLOW, SINGLE, FAILED]
    assert summarise(outputs, 5.0, {"ttft": 500.0}).goodput == pytest.approx(2 / 5)
    assert summarise(outputs, 5.0, {"ttft": 500.0, "e2el": 1000.0}).goodput == pytest.approx(1 / 5)
    assert summarise(outputs, 5.0, {"tpot": 300.1}).goodput == pytest.approx(2 / 5)


def test_nothing_answered_is_all_zero() -> None:
    summary = summarise([FAILED], duration=1.0)
    assert (summary.completed, summary.failed, summary.peak_output_throughput, summary.peak_concurrent) == (0, 1, 0, 0)
    assert "Successful requests:" in render_summary(summary, {})


@pytest.mark.parametrize(
    "name",
    [
        "Successful requests",
        "Benchmark duration (s)",
        "Total input tokens",
        "Total generated tokens",
        "Request throughput (req/s)",
        "Input token throughput (tok/s)",
        "Output token throughput (tok/s)",
        "Peak output token throughput (tok/s)",
        "Peak concurrent requests",
        "Total token throughput (tok/s)",
        "Concurrency",
        *(
            f"{part} {time} (ms)"
            for part in ("Mean", "Median", "P90", "P95", "P99")
            for time in ("TTFT", "TPOT", "ITL")
        ),
        *(f"{part} E2E Latency (ms)" for part in ("Mean", "Median", "P90", "P95", "P99")),
        "Max ITL (ms)",
    ],
)
def test_sglangs_names_are_printed(name: str) -> None:
    lines = render_summary(summarise([FAST], 2.0), {"Backend": "sglang"}).splitlines()
    assert sum(line.startswith(name + ":") for line in lines) == 1


def test_json_has_details_only_on_request() -> None:
    outputs = [FAST, FAILED]
    summary = summarise(outputs, 2.0)
    plain = to_json(summary, {"backend": "sglang"}, outputs, details=False)
    assert plain["mean_ttft_ms"] == pytest.approx(200.0)
    assert plain["p99_e2e_latency_ms"] == pytest.approx(1400.0)
    assert "itls" not in plain
    detailed = to_json(summary, {}, outputs, details=True)
    assert detailed["itls"] == [[0.1, 0.2, 0.3, 0.6], [9.0]]
    assert detailed["errors"] == ["", "gone"]


def test_errors_are_grouped_most_frequent_first() -> None:
    outputs = [RequestOutput(0.0, 1.0, 1, error=error) for error in ["b", "a", "b", "c", "d", "e", "f"]]
    lines = render_errors(outputs).splitlines()
    assert lines[0] == "2 x b"
    assert lines[-1] == "and 1 other kinds of error"
    assert render_errors([FAST]) == ""


def test_kv_report_is_a_difference() -> None:
    before = {"kv_transfer_bytes_total": 1e9, "kv_transfer_latency_ms_sum": 100.0, "kv_transfer_latency_ms_count": 1.0}
    after = {
        "kv_transfer_bytes_total": 3e9,
        "kv_bytes_made_in_forward_total": 1.6e9,
        "kv_bytes_posted_in_forward_total": 1.2e9,
        "kv_posting_seconds_total": 0.25,
        "kv_transfer_latency_ms_sum": 600.0,
        "kv_transfer_latency_ms_count": 5.0,
    }
    report = kv_report(before, after)
    assert report == KVReport(2e9, 1.6e9, 1.2e9, 4.0, 0.5, 0.25)
    assert report is not None
    assert (report.gb_moved, report.gb_per_s, report.early_share) == pytest.approx((2.0, 8.0, 0.75))
    assert "75.0" in render_kv(report)
    assert KVReport(0.0, 0.0, 0.0, 0.0, 0.0, 0.0).early_share == 0.0
    assert kv_report({}, {"num_running_reqs": 1.0}) is None
    assert "--engine-urls" in render_kv(None)
