"""Prometheus metrics with SGLang's names, so that its dashboards fill.

Two sources: what the front sees of requests (latencies, token counts), and the scheduler's snapshots, whose keys become
metric names as they are. A registry belongs to a `Metrics` object; nothing is global.
"""

import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UntypedMetricFamily
from prometheus_client.registry import Collector

from sglang.srt.observability.histogram import Histogram

PREFIX = "sglang:"
_LABELS = ("model_name", "instance")
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
_MILLISECONDS = tuple(bound * 1000 for bound in _SECONDS)
_AMOUNTS = tuple(4.0**power for power in range(-5, 16))
_RECENT = 4096
"""Observations of each kind kept for the percentiles in /server_info."""

_HELP = {
    "num_running_reqs": "Requests in the running batch.",
    "num_queue_reqs": "Requests waiting to be scheduled.",
    "token_usage": "Share of the KV pool in use (0..1).",
    "cache_hit_rate": "Share of prompt tokens whose KV was reused (0..1).",
    "gen_throughput": "Output tokens per second.",
    "kv_transfer_speed_gb_s": "KV transfer rate in GB/s.",
    "kv_transfer_latency_ms": "Time of a KV transfer in milliseconds.",
    "kv_transfer_total_mb": "KV bytes moved between engines, in MB.",
    "num_prefill_inflight_queue_reqs": "Requests of a prefill engine whose KV is on the way.",
    "num_decode_prealloc_queue_reqs": "Requests of a decode engine that wait for pages.",
    "num_decode_transfer_queue_reqs": "Requests of a decode engine whose KV is on the way.",
    "num_transfer_failed_reqs": "Requests whose KV transfer failed.",
}


class _Snapshot(Collector):
    """The scheduler's last snapshot as metrics."""

    def __init__(self, labels: tuple[str, ...]) -> None:
        self._labels = labels
        self.gauges: Mapping[str, float] = {}
        self.counters: Mapping[str, float] = {}

    def collect(self) -> Iterator[Metric]:
        for name, value in self.gauges.items():
            gauge = GaugeMetricFamily(PREFIX + name, _HELP.get(name, name), labels=_LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        for name, value in self.counters.items():
            text = _HELP.get(name.removesuffix("_total"), name)
            if name.endswith("_total"):
                counter = CounterMetricFamily(PREFIX + name.removesuffix("_total"), text, labels=_LABELS)
                counter.add_metric(self._labels, value)
                yield counter
            else:  # as a counter the exposition format would append `_total` to a name that dashboards know without
                plain = UntypedMetricFamily(PREFIX + name, text, labels=_LABELS)
                plain.add_metric(self._labels, value)
                yield plain


class Metrics:
    """Every metric of one HTTP process."""

    def __init__(self, model_name: str, instance: str) -> None:
        self._registry = CollectorRegistry()
        self._labels = (model_name, instance)
        self._snapshot = _Snapshot(self._labels)
        self._registry.register(self._snapshot)
        self._samples: dict[str, Histogram] = {}
        self._recent: dict[str, deque[float]] = {}
        self._ttft = self._histogram("time_to_first_token_seconds", "From arrival to the first token.", _SECONDS)
        self._itl = self._histogram("inter_token_latency_seconds", "Between the tokens of a request.", _SECONDS)
        self._e2e = self._histogram("e2e_request_latency_seconds", "From arrival to the last token.", _SECONDS)
        self._prompt = self._counter("prompt_tokens", "Prompt tokens of accepted requests.")
        self._generated = self._counter("generation_tokens", "Output tokens.")
        self._requests = self._counter("num_requests", "Requests that ended.")
        self._late = self._counter("scheduler_snapshot_late", "Scrapes that the scheduler did not answer in time.")
        self._aborted = self._counter("num_aborted_requests", "Requests that were aborted.")

    def started(self, prompt_tokens: int) -> None:
        """A request was sent to the scheduler."""
        self._prompt.inc(prompt_tokens)

    def first_token(self, seconds: float) -> None:
        """A request's first token came `seconds` after its arrival."""
        self._ttft.observe(seconds)

    def next_tokens(self, seconds: float, tokens: int) -> None:
        """`tokens` came together, `seconds` after the tokens before them."""
        self._itl.observe(seconds / tokens, tokens)

    def finished(self, seconds: float, tokens: int, *, aborted: bool) -> None:
        """A request ended `seconds` after its arrival with `tokens` output tokens in all."""
        self._e2e.observe(seconds)
        self._generated.inc(tokens)
        self._requests.inc()
        if aborted:
            self._aborted.inc()

    def take_snapshot(
        self, gauges: Mapping[str, float], counters: Mapping[str, float], samples: Mapping[str, Iterable[float]]
    ) -> None:
        """The scheduler's current numbers and latest observations. Keys that the front counts itself are left to it."""
        for key, values in samples.items():
            self.observe(key, values)
        own = {"prompt_tokens", "generation_tokens", "num_requests", "num_aborted_requests"}
        self._snapshot.gauges = gauges
        self._snapshot.counters = {k: v for k, v in counters.items() if k.removesuffix("_total") not in own}

    def scheduler_late(self) -> None:
        """A snapshot did not come in time: what is served of the scheduler is old."""
        self._late.inc()

    def observe(self, name: str, values: Iterable[float]) -> None:
        """Observations of the scheduler under `name`, whose ending (_seconds, _ms) says its unit."""
        if name not in self._samples:
            buckets = _SECONDS if name.endswith("_seconds") else _MILLISECONDS if name.endswith("_ms") else _AMOUNTS
            self._samples[name] = self._histogram(name, _HELP.get(name, name), buckets)
            self._recent[name] = deque(maxlen=_RECENT)
        histogram, recent = self._samples[name], self._recent[name]
        for value in values:
            histogram.observe(value)
            recent.append(value)

    def percentiles(self) -> dict[str, dict[str, float]]:
        """Count, mean, p50, p90, p99 and max of the latest observations under each name."""
        return {name: _summary(values) for name, values in self._recent.items() if values}

    def render(self) -> bytes:
        """The text exposition format, version 0.0.4."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(PREFIX + name, text, _LABELS, self._labels, buckets)
        self._registry.register(made)
        return made

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(PREFIX + name, text, _LABELS, registry=self._registry).labels(*self._labels)


def _summary(values: Iterable[float]) -> dict[str, float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    quantiles = {f"p{q}": ordered[round(last * q / 100)] for q in (50, 90, 99)}
    return {"count": len(ordered), "mean": statistics.fmean(ordered), **quantiles, "max": ordered[-1]}
