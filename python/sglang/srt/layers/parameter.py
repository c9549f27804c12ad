"""How a layer's tensors are filled from a checkpoint, described as data.

A layer allocates its rank's share and names, for each tensor of the checkpoint, which part of it goes where. The loader
in `models/weights.py` reads this and nothing else, so a layer that shards differently changes no other file.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch

from sglang.srt.distributed.collectives import Collectives
from sglang.srt.distributed.groups import ParallelGroup


class ExpertRanks(NamedTuple):
    """The ranks that divide the experts of every sparse layer among them, each with tokens of its own."""

    group: ParallelGroup
    collectives: Collectives


class LayerContext(NamedTuple):
    """What every layer is built with."""

    dtype: torch.dtype
    group: ParallelGroup
    collectives: Collectives
    ep_size: int = 1
    """Parts into which each layer's experts are divided; the ranks of one part share every expert's columns."""
    expert_ranks: ExpertRanks | None = None
    """Where attention is data-parallel: those of all replicas. None: `group` divides the experts too."""
    weight_bits: int = 16
    """8: linear layers and experts keep int8 weights (w8a16); the embedding and the head stay as they are."""


class Piece(NamedTuple):
    """Part of a checkpoint tensor: `length` entries from `start` along `axis` go into `target` (a view, same shape)."""

    axis: int
    start: int
    length: int
    target: torch.Tensor
    entry: int | None = None
    """Only this entry of the tensor's first axis (an expert of many packed into one tensor); `axis` counts in it."""


class Source(NamedTuple):
    """A checkpoint tensor by name, its whole shape, and the pieces that this rank takes."""

    name: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


def nothing() -> None:
    """What most layers do once they are filled."""


class Weight(NamedTuple):
    """A parameter that exactly one of several forms fills: split (q, k, v apart) or fused (one qkv), for example."""

    forms: tuple[tuple[Source, ...], ...]
    ready: Callable[[], None] = nothing
    """Called once the parameter is filled; its targets are not to be touched afterwards."""
    group: str = ""
    """A checkpoint that has no tensor whose name begins so may lack this parameter. Empty: it may not."""


class Layer(Protocol):
    """Anything with weights."""

    def weights(self) -> Iterator[Weight]:
        """Every parameter of the layer, once."""
        ...


def whole(name: str, target: torch.Tensor) -> Weight:
    """A parameter that every rank holds completely."""
    piece = Piece(0, 0, target.shape[0], target)
    return Weight(((Source(name, tuple(target.shape), (piece,)),),))
