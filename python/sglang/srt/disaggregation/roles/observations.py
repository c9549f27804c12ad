"""Latency and volume of transfers, for /metrics and the demo's report."""

from collections import deque

KEPT = 1024
"""Observations kept between two scrapes; older ones are lost to histograms, never to totals."""


class Observations:
    """Finished transfers of one decode engine."""

    def __init__(self) -> None:
        self._latency_ms: deque[float] = deque(maxlen=KEPT)
        self._last_speed = 0.0
        self._count = 0
        self._bytes = 0
        self._seconds = 0.0

    def transfer(self, seconds: float, nbytes: int) -> None:
        """`nbytes` arrived `seconds` after they had been asked for, the prefill itself included."""
        self._count += 1
        self._bytes += nbytes
        self._seconds += seconds
        self._latency_ms.append(seconds * 1e3)
        self._last_speed = nbytes / max(seconds, 1e-9) / 1e9

    def gauges(self) -> dict[str, float]:
        """GB/s of the latest transfer, over the whole time since it was asked for."""
        return {"kv_transfer_speed_gb_s": self._last_speed}

    def counters(self) -> dict[str, float]:
        """Totals."""
        return {
            "num_transfers_total": self._count,
            "kv_transfer_total_mb": self._bytes / 1e6,
            "kv_transfer_seconds_total": self._seconds,
        }

    def take(self) -> dict[str, tuple[float, ...]]:
        """Latencies (ms) since the last call."""
        taken = {"kv_transfer_latency_ms": tuple(self._latency_ms)} if self._latency_ms else {}
        self._latency_ms.clear()
        return taken
