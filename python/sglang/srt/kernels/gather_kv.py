"""Collect the pages of rows into contiguous K and V."""

import torch


def gather_rows(pages: torch.Tensor, planes: int) -> torch.Tensor:
    """Which blocks of `page_size * head_dim` elements make up the KV of some rows.

    `pages`: `[rows, pages_a_row]` of any integer type; `planes`: blocks a page, 2 a KV head or 1 of a latent. Returns
    int64 `[rows * planes * pages_a_row]` in the order (row, plane, page), so that the gathered tokens of one plane (K
    of a head, say) lie one after the other.
    """
    rows, width = pages.shape
    blocks = pages.to(torch.int64).view(rows, 1, width) * planes
    return (blocks + torch.arange(planes).view(1, planes, 1)).flatten()


def gather_kv(layer: torch.Tensor, blocks: torch.Tensor, out: torch.Tensor) -> None:
    """Copy `blocks` (from gather_rows) of a layer's pages `[num_pages, ..., page_size, head_dim]` into `out`.

    `out`: `[len(blocks), page_size * head_dim]`, contiguous, of the layer's dtype.
    """
    torch.index_select(layer.view(-1, layer.shape[-1] * layer.shape[-2]), 0, blocks, out=out)
