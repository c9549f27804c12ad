"""Write fresh K and V into pages."""

import torch


def kv_rows(pages: torch.Tensor, offsets: torch.Tensor, *, kv_heads: int, page_size: int) -> torch.Tensor:
    """Where each token's vectors go, seen as rows of `head_dim` elements of one layer's pages.

    `pages`, `offsets`: int64 `[tokens]`, the page of a token and its place in that page. Returns int64
    `[tokens * 2 * kv_heads]` in the order (token, K or V, head), for pages
    `[num_pages, kv_heads, 2, page_size, head_dim]`.
    """
    first = pages * (kv_heads * 2 * page_size) + offsets
    plane = torch.arange(2).view(1, 2, 1) * page_size
    head = torch.arange(kv_heads).view(1, 1, kv_heads) * (2 * page_size)
    return (first.view(-1, 1, 1) + plane + head).flatten()


def store_kv(layer: torch.Tensor, rows: torch.Tensor, kv: torch.Tensor) -> None:
    """Put `kv` `[tokens, 2, kv_heads, head_dim]` into a layer's contiguous pages at `rows` (from kv_rows).

    `kv` is rounded to the layer's dtype. Rows must not repeat.
    """
    head_dim = layer.shape[-1]
    layer.view(-1, head_dim).index_copy_(0, rows, kv.reshape(-1, head_dim).to(layer.dtype))
