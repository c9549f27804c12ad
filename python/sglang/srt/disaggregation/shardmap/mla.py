"""MLA: every rank holds every page. Equal TP sends rank i to rank i; otherwise pages are striped over source
replicas.
"""

from collections.abc import Iterator

from sglang.srt.core.layout import ShardLayout


def mla_copies(source: ShardLayout, destination: ShardLayout, replica_key: int) -> Iterator[dict[str, int]]:
    """One whole-page extent a destination rank and stripe.

    With unequal TP a request's pages go round the source ranks, starting at the replica key, so that one request uses
    every source rank's NIC.
    """
    whole = {"source_offset": 0, "destination_offset": 0, "nbytes": source.kv.head_bytes}
    for rank in range(destination.tp_size):
        if source.tp_size == destination.tp_size:
            yield {"source_rank": rank, "destination_rank": rank, **whole}
            continue
        for replica in range(source.tp_size):
            yield {
                "source_rank": (replica + replica_key + rank) % source.tp_size,
                "destination_rank": rank,
                "first": replica,
                "stride": source.tp_size,
                **whole,
            }
