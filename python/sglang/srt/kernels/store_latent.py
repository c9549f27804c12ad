"""Write fresh latents into pages."""

import torch


def latent_rows(pages: torch.Tensor, offsets: torch.Tensor, *, page_size: int) -> torch.Tensor:
    """Where each token's latent goes, seen as rows of one layer's pages `[num_pages, page_size, latent_dim]`.

    `pages`, `offsets`: int64 `[tokens]`, the page of a token and its place in that page. Returns int64 `[tokens]`.
    """
    return pages * page_size + offsets


def store_latent(layer: torch.Tensor, rows: torch.Tensor, latent: torch.Tensor) -> None:
    """Put `latent` `[tokens, latent_dim]` into a layer's contiguous pages at `rows` (from latent_rows).

    It is rounded to the layer's dtype. Rows must not repeat.
    """
    layer.view(-1, layer.shape[-1]).index_copy_(0, rows, latent.to(layer.dtype))
