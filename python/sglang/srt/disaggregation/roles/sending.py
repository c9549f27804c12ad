"""The programs of a prefill engine: which pages of a transfer are with the messenger, and what became of them."""

from sglang.srt.core.ports import KVMessenger, LayerWrites, PageCopies, WritesDone, WritesEnded
from sglang.srt.core.step import StepResult
from sglang.srt.core.trace import Tracer
from sglang.srt.disaggregation.handoff.ledger import Outbound
from sglang.srt.disaggregation.roles.overlap import OverlapMeter


class Sending:
    """Arms programs and joins their ends with the transfers that own them."""

    def __init__(self, messenger: KVMessenger, tracer: Tracer) -> None:
        self._messenger = messenger
        self._by_handle: dict[int, tuple[Outbound, int | None]] = {}
        """Program -> (transfer, step that makes its KV; None for cached pages)."""
        self._overlap = OverlapMeter(tracer)
        self._bytes = self._posting_ns = 0

    def arm(self, outbound: Outbound, upto: int, base: int | None, step_id: int | None) -> None:
        """Hand the pages outbound.sent_to .. upto-1 to the messenger; a half-filled page waits for a later chunk."""
        start = outbound.sent_to
        if upto <= start:
            return
        outbound.sent_to = upto
        copies = tuple(_copies(outbound, start, upto))
        handle = self._messenger.arm(LayerWrites(peer=outbound.peer, slot=outbound.slot, base=base, copies=copies))
        outbound.handles.add(handle)
        self._by_handle[handle] = (outbound, step_id)

    def ended(self, event: WritesDone | WritesEnded) -> Outbound:
        """A program is over; returns the transfer that it belonged to."""
        outbound, step_id = self._by_handle.pop(event.handle)
        outbound.handles.discard(event.handle)
        if isinstance(event, WritesDone):
            self._bytes += sum(event.layer_bytes)
            self._posting_ns += sum(event.posted_ns) - sum(event.seen_ns)
            if step_id is not None:
                self._overlap.done(step_id, event)
        return outbound

    def cancel(self, outbound: Outbound) -> None:
        """Post nothing more of a transfer; each of its programs still ends by an event."""
        for handle in outbound.handles:
            self._messenger.cancel(handle)

    def stepped(self, result: StepResult) -> None:
        """A step is over."""
        self._overlap.stepped(result)

    @property
    def programs(self) -> int:
        """Programs that have not ended."""
        return len(self._by_handle)

    def counters(self) -> dict[str, float]:
        """For /metrics."""
        return {
            "kv_transfer_bytes_total": self._bytes,
            "kv_posting_seconds_total": self._posting_ns / 1e9,
            "kv_bytes_made_in_forward_total": self._overlap.bytes_total,
            "kv_bytes_posted_in_forward_total": self._overlap.bytes_in_forward,
        }


def _copies(outbound: Outbound, start: int, upto: int) -> list[PageCopies]:
    assert outbound.request.lease is not None
    source = outbound.request.lease.pages
    copies = []
    for copy in outbound.copies:
        indices = [i for i in range(start, upto) if copy.takes(i)]
        if indices:
            copies.append(
                PageCopies(
                    source_rank=copy.source_rank,
                    destination_rank=copy.destination_rank,
                    source_offset=copy.source_offset,
                    destination_offset=copy.destination_offset,
                    nbytes=copy.nbytes,
                    source_pages=tuple(source[i] for i in indices),
                    destination_pages=tuple(outbound.pages[i - outbound.first_page] for i in indices),
                )
            )
    return copies
