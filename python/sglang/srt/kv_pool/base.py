"""The tensors behind a ShardLayout, as the rest of a rank sees them."""

from typing import Protocol

import torch

from sglang.srt.core.layout import ShardLayout

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""torch's dtypes by the names that layouts and configs use."""


class Region(Protocol):
    """Memory that a pool lies in; private or shared."""

    address: int
    nbytes: int

    @property
    def buffer(self) -> object:
        """A writable object with the buffer protocol."""
        ...


class KVPool(Protocol):
    """One rank's KV pages: a single contiguous region `[layers, num_pages, page]` at a fixed address."""

    layout: ShardLayout
    rank: int
    address: int
    """Of the region's first byte, in this process."""
    nbytes: int
    """Of the region; layout.region_bytes(rank)."""

    def layer(self, index: int) -> torch.Tensor:
        """One layer's pages, contiguous: GQA `[num_pages, kv_heads_of_rank, 2, page_size, head_dim]`, MLA
        `[num_pages, page_size, kv_lora_rank + rope_dim]`.
        """
        ...

    def poison(self) -> None:
        """Fill the region with NaN, so that a test sees every byte that is read before it is written."""
        ...
