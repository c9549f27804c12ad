"""KV pages of grouped-query attention.

One layer of a rank:  page 0                                   page 1 ...
                      head 0: [K page_size x dim][V ...]  head 1: [K][V] ...
"""

import torch

from sglang.srt.core.layout import ShardLayout
from sglang.srt.kv_pool.base import TORCH_DTYPES, Region


class GQAPool:
    """A KVPool over one region, `[layers, num_pages, kv_heads_of_rank, 2, page_size, head_dim]`."""

    def __init__(self, layout: ShardLayout, rank: int, region: Region) -> None:
        """Raises ValueError where the layout is not GQA or the region is not exactly of its size."""
        if layout.kv.kind != "gqa":
            raise ValueError(f"a GQA pool for a layout of kind {layout.kv.kind}")
        if region.nbytes != layout.region_bytes(rank):
            raise ValueError(f"a region of {region.nbytes} bytes for a layout of {layout.region_bytes(rank)}")
        kv = layout.kv
        shape = (kv.layers, layout.num_pages, len(layout.heads_of(rank)), 2, kv.page_size, kv.head_dim)
        self.layout = layout
        self.rank = rank
        self.address = region.address
        self.nbytes = region.nbytes
        self._region = region
        self._tensor = torch.frombuffer(region.buffer, dtype=TORCH_DTYPES[kv.dtype]).view(shape)
        self._layers = [self._tensor[index] for index in range(kv.layers)]

    def layer(self, index: int) -> torch.Tensor:
        return self._layers[index]

    def poison(self) -> None:
        self._tensor.fill_(float("nan"))
