"""KV pages of multi-head latent attention; every rank holds all of them.

One layer of a rank:  page 0: [latent | rotated key] x page_size,  page 1 ...
"""

import torch

from sglang.srt.core.layout import ShardLayout
from sglang.srt.kv_pool.base import TORCH_DTYPES, Region


class MLAPool:
    """A KVPool over one region, `[layers, num_pages, page_size, kv_lora_rank + rope_dim]`."""

    def __init__(self, layout: ShardLayout, rank: int, region: Region) -> None:
        """Raises ValueError where the layout is not MLA or the region is not exactly of its size."""
        if layout.kv.kind != "mla":
            raise ValueError(f"an MLA pool for a layout of kind {layout.kv.kind}")
        if region.nbytes != layout.region_bytes(rank):
            raise ValueError(f"a region of {region.nbytes} bytes for a layout of {layout.region_bytes(rank)}")
        kv = layout.kv
        self.layout = layout
        self.rank = rank
        self.address = region.address
        self.nbytes = region.nbytes
        self._region = region
        flat = torch.frombuffer(region.buffer, dtype=TORCH_DTYPES[kv.dtype])
        self._tensor = flat.view(kv.layers, layout.num_pages, kv.page_size, kv.head_dim)
        self._layers = [self._tensor[index] for index in range(kv.layers)]

    def layer(self, index: int) -> torch.Tensor:
        return self._layers[index]

    def poison(self) -> None:
        self._tensor.fill_(float("nan"))
