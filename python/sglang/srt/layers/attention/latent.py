"""From cached latents to the keys and values of a rank's heads, and around that (DeepSeek-V2, section 2.1.2 and
appendix B of https://arxiv.org/abs/2405.04434).

With c a latent, head h has key `K_h c` and value `V_h c`. A score `q . (K_h c)` is `(q K_h) . c`, and the values' mean
`sum p (V_h c)` is `V_h sum p c`: absorbing K into the query and V into the output spares the keys and values of every
cached token, which is what decoding wants. Prompts expand them once and reuse them for all their queries.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.nn import functional as F

from sglang.srt.config.model_mla import MLASpec
from sglang.srt.layers.parameter import LayerContext, Piece, Source, Weight


class LatentShape(NamedTuple):
    """Sizes that a backend needs, of this rank."""

    heads: int
    rank: int
    """Elements of a latent without the rotated key."""
    nope: int
    rope: int
    v: int

    @property
    def qk(self) -> int:
        """Elements of a head's Q and expanded K."""
        return self.nope + self.rope

    @property
    def break_even(self) -> int:
        """Queries of a row from which on expanding its context once costs less than absorbing for each query.

        Multiplications a context token and head: expanding rank * (nope + v) once, then nope + rope + v a query;
        absorbed 2 * rank + rope a query.
        """
        saved = 2 * self.rank + self.rope - (self.qk + self.v)
        return 1 << 30 if saved <= 0 else -(-self.rank * (self.nope + self.v) // saved)


class LatentHeads:
    """One layer's kv_b projection, `[heads * (nope + v), rank]` in the checkpoint; shard axis 0, by heads."""

    def __init__(self, context: LayerContext, name: str, spec: MLASpec, heads: int) -> None:
        share = context.group.share(heads, "attention heads")
        self._name = name
        self._width = spec.nope_dim + spec.v_dim
        self._all = heads
        self._first = share.start
        self.shape = LatentShape(len(share), spec.kv_lora_rank, spec.nope_dim, spec.rope_dim, spec.v_dim)
        self._weight = torch.empty(len(share), self._width, spec.kv_lora_rank, dtype=context.dtype)

    def absorb(self, q: torch.Tensor) -> torch.Tensor:
        """Queries without rope `[tokens, heads, nope]` -> against latents, `[tokens, heads, rank]`."""
        keys = self._weight[:, : self.shape.nope]
        return torch.bmm(q.transpose(0, 1), keys).transpose(0, 1)

    def values(self, attended: torch.Tensor) -> torch.Tensor:
        """Means of latents `[tokens, heads, rank]` -> means of values `[tokens, heads, v]`."""
        values = self._weight[:, self.shape.nope :]
        return torch.bmm(attended.transpose(0, 1), values.transpose(1, 2)).transpose(0, 1)

    def expand(self, latents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents `[tokens, rank]` -> keys without rope `[tokens, heads, nope]` and values `[tokens, heads, v]`."""
        both = F.linear(latents, self._weight.view(-1, self.shape.rank))
        both = both.view(latents.shape[0], self.shape.heads, self._width)
        return both[..., : self.shape.nope], both[..., self.shape.nope :]

    def weights(self) -> Iterator[Weight]:
        """The projection."""
        flat = self._weight.view(-1, self.shape.rank)
        piece = Piece(0, self._first * self._width, flat.shape[0], flat)
        yield Weight(((Source(f"{self._name}.weight", (self._all * self._width, self.shape.rank), (piece,)),),))
