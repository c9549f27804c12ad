"""Collect the pages of rows into contiguous K and V."""

import torch


def gather_rows(pages: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Which blocks of `page_size * head_dim` elements make up the K and V of some rows.

    `pages`: `[rows, pages_a_row]` of any integer type. Returns int64 `[rows * kv_heads * 2 * pages_a_row]` in the order
    (row, head, K or V, page), so that the gathered tokens of one head lie one after the other.
    """
    rows, width = pages.shape
    blocks = pages.to(torch.int64).view(rows, 1, 1, width) * (kv_heads * 2)
    inner = torch.arange(kv_heads * 2).view(1, kv_heads, 2, 1)
    return (blocks + inner).flatten()


def gather_kv(layer: torch.Tensor, blocks: torch.Tensor, out: torch.Tensor) -> None:
    """Copy `blocks` (from gather_rows) of a layer's pages `[num_pages, kv_heads, 2, page_size, head_dim]` into `out`.

    `out`: `[len(blocks), page_size * head_dim]`, contiguous, of the layer's dtype.
    """
    torch.index_select(layer.view(-1, layer.shape[-1] * layer.shape[-2]), 0, blocks, out=out)
