"""What engines say about KV transfers in their /metrics, as a difference between two moments of a run."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from sglang.srt.errors import EngineError

PREFIX = "sglang:"
MOVED = "kv_transfer_bytes_total"
MADE = "kv_bytes_made_in_forward_total"
POSTED_EARLY = "kv_bytes_posted_in_forward_total"
LATENCY_SUM = "kv_transfer_latency_ms_sum"
POSTING_SECONDS = "kv_posting_seconds_total"
LATENCY_COUNT = "kv_transfer_latency_ms_count"


@dataclass(frozen=True, slots=True)
class KVReport:
    """KV that was moved between prefill and decode engines."""

    bytes_moved: float
    bytes_made_in_forward: float
    """Of these, bytes that a forward pass made for the transfer; the others were cached already."""
    bytes_posted_in_forward: float
    """Of those, bytes whose write was posted before their forward pass had ended."""
    transfers: float
    transfer_seconds: float
    """Sum over the transfers, of the time from asking to arrival."""
    posting_seconds: float
    """Sum over layers, of the time from the watcher's look at the counter to the layer's last post."""

    @property
    def gb_moved(self) -> float:
        """In 10^9 bytes."""
        return self.bytes_moved / 1e9

    @property
    def gb_per_s(self) -> float:
        """Bytes over the time that posting them took; 0 without a transfer.

        What the sender's wire took in. Over the time since the ask, prefill compute would be measured instead.
        """
        return self.gb_moved / self.posting_seconds if self.posting_seconds else 0.0

    @property
    def early_share(self) -> float:
        """Share of the bytes made in a forward that were posted before it had ended; 0 where none was made."""
        return self.bytes_posted_in_forward / self.bytes_made_in_forward if self.bytes_made_in_forward else 0.0


async def read_metrics(http: httpx.AsyncClient, urls: Iterable[str]) -> dict[str, float]:
    """Samples of all engines, summed over engines and labels. Raises EngineError where one does not answer."""
    try:
        answers = await asyncio.gather(*(http.get(url.rstrip("/") + "/metrics") for url in urls))
        for answer in answers:
            answer.raise_for_status()
    except httpx.HTTPError as error:
        raise EngineError(f"cannot read /metrics of an engine: {error}") from error
    totals: dict[str, float] = {}
    for answer in answers:
        for family in text_string_to_metric_families(answer.text):
            for sample in family.samples:
                name = sample.name.removeprefix(PREFIX)
                totals[name] = totals.get(name, 0.0) + sample.value
    return totals


def kv_report(before: Mapping[str, float], after: Mapping[str, float]) -> KVReport | None:
    """The difference between two readings; None where no prefill engine, which counts bytes, was read."""
    if MOVED not in after:
        return None

    def grown(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    return KVReport(
        bytes_moved=grown(MOVED),
        bytes_made_in_forward=grown(MADE),
        bytes_posted_in_forward=grown(POSTED_EARLY),
        transfers=grown(LATENCY_COUNT),
        transfer_seconds=grown(LATENCY_SUM) / 1e3,
        posting_seconds=grown(POSTING_SECONDS),
    )
