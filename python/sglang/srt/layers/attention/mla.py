"""The multi-head latent attention block of a decoder layer (DeepSeek-V2, https://arxiv.org/abs/2405.04434, 2.1)."""

from collections.abc import Iterator

import torch

from sglang.srt.config.model import ModelSpec
from sglang.srt.config.model_mla import MLASpec
from sglang.srt.layers.attention.base import AttentionBackend
from sglang.srt.layers.attention.latent import LatentHeads
from sglang.srt.layers.linear import ColumnLinear, Part, ReplicatedLinear, RowLinear
from sglang.srt.layers.norm import RMSNorm
from sglang.srt.layers.parameter import LayerContext, Weight
from sglang.srt.layers.rope import Rotation, pairs_to_halves

NORM_EPS = 1e-6
"""Of the norms of both latents, whatever the config's rms_norm_eps says: the reference leaves it at its default."""


class MLAttention:
    """Query and latent projections, rope on their rotated parts, attention over latents, output projection.

    Queries are sharded by heads; the latent is computed on every rank, since every rank caches it. `heads` is what the
    backend needs to attend.
    """

    def __init__(self, context: LayerContext, prefix: str, spec: ModelSpec, mla: MLASpec, layer: int) -> None:
        self._mla = mla
        self._layer = layer
        self.heads = LatentHeads(context, f"{prefix}.kv_b_proj", mla, spec.num_heads)
        hidden, bias = spec.hidden_size, spec.qkv_bias
        self._query = _Query(context, prefix, spec, mla)
        self._latent = ReplicatedLinear(context, f"{prefix}.kv_a_proj_with_mqa", hidden, mla.latent_dim, bias=bias)
        self._norm = RMSNorm(context, f"{prefix}.kv_a_layernorm", mla.kv_lora_rank, NORM_EPS)
        share = context.group.share(spec.num_heads, "attention heads")
        columns = range(share.start * mla.v_dim, share.stop * mla.v_dim)
        width = spec.num_heads * mla.v_dim
        self._output = RowLinear(context, f"{prefix}.o_proj", width, columns, hidden, bias=spec.output_bias)

    def __call__(
        self, x: torch.Tensor, rotation: Rotation, backend: AttentionBackend, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attend; with `rows` (int64), only those tokens' outputs are projected and returned."""
        q = self._query(x)
        q[..., self._mla.nope_dim :] = self._rotate(q[..., self._mla.nope_dim :], rotation)
        attended = backend.attend(self._layer, q, self._latents(x, rotation))
        return self._output(attended if rows is None else attended[rows])

    def store(self, x: torch.Tensor, rotation: Rotation, backend: AttentionBackend) -> None:
        """Only compute and store the latents; the model's last layer alone can do that."""
        backend.store(self._layer, self._latents(x, rotation))

    def _latents(self, x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        """What is cached: `[tokens, kv_lora_rank + rope_dim]`, the latent normed and the key rotated."""
        latents = self._latent(x)
        rank = self._mla.kv_lora_rank
        key = self._rotate(latents[:, rank:].unsqueeze(1), rotation).squeeze(1)
        return torch.cat((self._norm(latents[:, :rank]), key), dim=-1)

    def _rotate(self, x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        """Rotated `x`, which may be `x` itself."""
        if self._mla.interleaved:
            x = pairs_to_halves(x)
        rotation.turn(x)
        return x

    def weights(self) -> Iterator[Weight]:
        """All projections and norms."""
        for part in (self._query, self._latent, self._norm, self.heads, self._output):
            yield from part.weights()


class _Query:
    """`[tokens, hidden]` -> `[tokens, heads of this rank, nope + rope]`, through a latent of its own or directly."""

    def __init__(self, context: LayerContext, prefix: str, spec: ModelSpec, mla: MLASpec) -> None:
        share = context.group.share(spec.num_heads, "attention heads")
        width = mla.qk_dim
        name = "q_b_proj" if mla.q_lora_rank else "q_proj"
        parts = [Part(name, spec.num_heads * width, range(share.start * width, share.stop * width))]
        inputs = mla.q_lora_rank or spec.hidden_size
        self._heads = len(share)
        self._down: ReplicatedLinear | None = None
        self._norm: RMSNorm | None = None
        if mla.q_lora_rank:
            self._down = ReplicatedLinear(
                context, f"{prefix}.q_a_proj", spec.hidden_size, mla.q_lora_rank, bias=spec.qkv_bias
            )
            self._norm = RMSNorm(context, f"{prefix}.q_a_layernorm", mla.q_lora_rank, NORM_EPS)
        self._up = ColumnLinear(context, prefix, inputs, parts, fused=name, bias=False)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._down is not None and self._norm is not None:
            x = self._norm(self._down(x))
        return self._up(x).view(x.shape[0], self._heads, -1)

    def weights(self) -> Iterator[Weight]:
        """Two projections and a norm, or one projection."""
        for part in (self._down, self._norm, self._up):
            if part is not None:
                yield from part.weights()
