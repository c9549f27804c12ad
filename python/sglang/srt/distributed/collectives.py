"""What layers need of the other ranks."""

from collections.abc import Sequence
from typing import Protocol

import torch


class Collectives(Protocol):
    """Collective operations of one ParallelGroup; every rank calls them in the same order."""

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The element-wise sum over ranks, of the same shape; may reuse `tensor`."""
        ...

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        """The ranks' `[..., n]` joined along the last axis, in rank order: `[..., size * n]`."""
        ...

    def all_to_all(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Rows `[n, width]` to the ranks they are for: what is here stands by destination, what returns by sender.

        `counts` is flat `[size * size]` and equal on every rank: entry a * size + b counts rows from rank a to rank b.
        """
        ...

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Fill `tensor`, of the same shape on every rank and contiguous, with what rank 0 has in it."""
        ...

    def barrier(self) -> None:
        """Return once every rank is here: what it wrote before, into its KV pool too, is visible then."""
        ...


class SoloCollectives:
    """The collectives of a group of one: nothing to exchange."""

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_to_all(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        return rows

    def broadcast(self, tensor: torch.Tensor) -> None:
        pass

    def barrier(self) -> None:
        pass
