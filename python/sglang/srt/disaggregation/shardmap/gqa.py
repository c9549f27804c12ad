"""GQA: intersect head ranges. Heads lie outside tokens in a page, so a head range is one contiguous extent."""

from collections.abc import Iterator

from sglang.srt.core.layout import ShardLayout


def gqa_copies(source: ShardLayout, destination: ShardLayout, replica_key: int) -> Iterator[dict[str, int]]:
    """For each destination rank, the fewest extents that cover its heads.

    Where several source ranks hold the same head (tp_size above kv_heads), destination ranks take turns through them,
    starting at the replica key, page by page, so that each source rank sends within one page of the same amount.
    """
    replicas = max(1, source.tp_size // source.kv.kv_heads)
    for rank in range(destination.tp_size):
        wanted = destination.heads_of(rank)
        for holder in _holders(source):
            held = source.heads_of(holder)
            common = range(max(held.start, wanted.start), min(held.stop, wanted.stop))
            if common:
                yield from _striped(source, rank, wanted, held, common, holder, replicas, replica_key)


def _holders(source: ShardLayout) -> Iterator[int]:
    """The first rank of every group of ranks that hold the same heads."""
    seen: set[int] = set()
    for rank in range(source.tp_size):
        start = source.heads_of(rank).start
        if start not in seen:
            seen.add(start)
            yield rank


def _striped(
    source: ShardLayout,
    rank: int,
    wanted: range,
    held: range,
    common: range,
    holder: int,
    replicas: int,
    replica_key: int,
) -> Iterator[dict[str, int]]:
    size = source.kv.head_bytes
    for replica in range(replicas):
        yield {
            "source_rank": holder + (replica + replica_key + rank) % replicas,
            "destination_rank": rank,
            "source_offset": (common.start - held.start) * size,
            "destination_offset": (common.start - wanted.start) * size,
            "nbytes": len(common) * size,
            "first": replica,
            "stride": replicas,
        }
