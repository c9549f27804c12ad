"""The pool for a layout, whichever kind it is of."""

from sglang.srt.core.layout import ShardLayout
from sglang.srt.kv_pool.base import KVPool, Region
from sglang.srt.kv_pool.gqa import GQAPool
from sglang.srt.kv_pool.mla import MLAPool


def open_pool(layout: ShardLayout, rank: int, region: Region) -> KVPool:
    """A rank's pool over `region`, which must be exactly of the layout's size (ValueError)."""
    return GQAPool(layout, rank, region) if layout.kv.kind == "gqa" else MLAPool(layout, rank, region)
