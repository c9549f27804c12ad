"""The seam between models and attention over paged KV. Backends do not know each other."""

from typing import NamedTuple, Protocol

import torch


class AttentionRow(NamedTuple):
    """One request's part of a step: queries at positions start .. start+length-1, keys at all positions up to each."""

    start: int
    """Tokens whose KV already lies in the row's pages."""
    length: int
    """Tokens computed in this step, at least 1."""


class AttentionBatch(NamedTuple):
    """What attention needs to know about a step. The tokens of the rows stand one after the other."""

    rows: tuple[AttentionRow, ...]
    block_table: torch.Tensor
    """int32 `[rows, pages]`; entry j is the page of positions j * page_size and up, unused past a row's end."""
    positions: torch.Tensor
    """int64 `[tokens]`."""


class AttentionBackend(Protocol):
    """Stores and attends over one rank's KV pool. `prepare` is called once a step, then every layer at most once."""

    def prepare(self, batch: AttentionBatch) -> None:
        """Plan the step: what does not depend on the layer is computed here, once."""
        ...

    def attend(self, layer: int, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        """Store the step's K and V, then attend causally.

        `q` `[tokens, heads, head_dim]`, `kv` `[tokens, 2, kv_heads, head_dim]` (K then V, rope applied), of this rank.
        Returns `[tokens, heads * head_dim]` of q's dtype. Pages beyond a row's tokens may hold anything, NaN included.
        """
        ...

    def store(self, layer: int, kv: torch.Tensor) -> None:
        """Only store the step's K and V; `kv` as in attend."""
        ...
