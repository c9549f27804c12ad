"""Which bytes of a page go from which source rank to which destination rank: pure arithmetic on two layouts.

Every (destination rank, layer, page, head, K/V) byte is written exactly once, so the expected weight of a transfer is
known before it is asked for.
"""

import msgspec

from sglang.srt.core.layout import ShardLayout
from sglang.srt.disaggregation.shardmap.gqa import gqa_copies
from sglang.srt.disaggregation.shardmap.mla import mla_copies


class ShardCopy(msgspec.Struct, frozen=True, kw_only=True):
    """One extent of every page in a stripe: the pages whose index in the prompt is `first`, `first + stride`, ..."""

    source_rank: int
    destination_rank: int
    source_offset: int
    """Bytes from the start of the source rank's page."""
    destination_offset: int
    nbytes: int
    first: int = 0
    stride: int = 1

    def takes(self, page_index: int) -> bool:
        """Whether the page at this index of the prompt belongs to the stripe."""
        return page_index % self.stride == self.first

    def pages_in(self, start: int, stop: int) -> int:
        """How many page indices of start..stop-1 belong to the stripe."""
        return _below(stop, self.first, self.stride) - _below(start, self.first, self.stride)


def _below(bound: int, first: int, stride: int) -> int:
    return max(0, (bound - first + stride - 1) // stride)


def plan_copies(source: ShardLayout, destination: ShardLayout, replica_key: int) -> tuple[ShardCopy, ...]:
    """The copies of every page of a transfer.

    `replica_key` spreads transfers over source ranks that hold the same bytes. Raises ValueError, naming the fields,
    where the two layouts do not describe the same KV.
    """
    differences = source.kv.differences(destination.kv)
    if differences:
        raise ValueError("KV layouts differ: " + "; ".join(differences))
    build = gqa_copies if source.kv.kind == "gqa" else mla_copies
    return tuple(ShardCopy(**fields) for fields in build(source, destination, replica_key))


def expected_weight(copies: tuple[ShardCopy, ...], first_page: int, last_page: int, layers: int) -> int:
    """Immediates' total for pages first_page..last_page-1 of a prompt, over all layers and destination ranks."""
    return layers * sum(copy.pages_in(first_page, last_page) for copy in copies)
