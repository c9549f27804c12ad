"""The exposition text: names, labels, types, and what the front counts itself."""

import io
import logging

from prometheus_client.parser import text_string_to_metric_families

from sglang.srt.observability.logs import setup_logging
from sglang.srt.observability.metrics import Metrics


def samples(metrics: Metrics) -> dict[str, float]:
    text = metrics.render().decode()
    return {s.name: s.value for family in text_string_to_metric_families(text) for s in family.samples}


def test_the_fronts_own_numbers() -> None:
    metrics = Metrics("m", "i")
    metrics.started(7)
    metrics.first_token(0.5)
    metrics.next_tokens(0.3, 3)
    metrics.finished(2.0, 4, aborted=False)
    metrics.finished(2.0, 0, aborted=True)
    seen = samples(metrics)
    assert seen["sglang:prompt_tokens_total"] == 7 and seen["sglang:generation_tokens_total"] == 4
    assert seen["sglang:num_requests_total"] == 2 and seen["sglang:num_aborted_requests_total"] == 1
    assert seen["sglang:time_to_first_token_seconds_sum"] == 0.5
    assert seen["sglang:inter_token_latency_seconds_count"] == 3
    assert abs(seen["sglang:inter_token_latency_seconds_sum"] - 0.3) < 1e-9
    assert seen["sglang:e2e_request_latency_seconds_count"] == 2


def test_snapshots_keep_their_names_and_samples_become_histograms() -> None:
    metrics = Metrics("m", "i")
    for _ in range(2):
        metrics.take_snapshot(
            {"token_usage": 0.5},
            {"kv_transfer_bytes_total": 10.0, "kv_transfer_total_mb": 3.0, "prompt_tokens_total": 99.0},
            {"kv_transfer_latency_ms": (5.0, 15.0)},
        )
    seen = samples(metrics)
    assert seen["sglang:token_usage"] == 0.5
    assert seen["sglang:kv_transfer_bytes_total"] == 10.0
    assert seen["sglang:kv_transfer_total_mb"] == 3.0
    assert seen["sglang:prompt_tokens_total"] == 0.0, "the front counts these itself"
    assert seen["sglang:kv_transfer_latency_ms_count"] == 4 and seen["sglang:kv_transfer_latency_ms_sum"] == 40
    assert metrics.percentiles()["kv_transfer_latency_ms"]["max"] == 15.0


def test_log_lines_carry_the_role() -> None:
    root, access = logging.getLogger(), logging.getLogger("uvicorn.access")
    before = (root.handlers[:], root.level, access.level)
    stream = io.StringIO()
    try:
        setup_logging("decode", "info", stream=stream)
        logging.getLogger("sglang.test").info("hello")
        access.info("GET /")
        assert "[decode] INFO sglang.test: hello\n" in stream.getvalue()
        assert "GET /" not in stream.getvalue()
    finally:
        root.handlers[:], root.level = before[0], before[1]
        access.setLevel(before[2])
