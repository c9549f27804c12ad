"""Gemma 3, text (https://arxiv.org/abs/2503.19786): norms before and after each block, windowed layers with a rope base
of their own, embeddings scaled by the square root of their size.
"""

from collections.abc import Iterator

import torch

from sglang.srt.config.model import ModelSpec
from sglang.srt.kernels.residual import add_residual
from sglang.srt.layers.activation import gated_activation
from sglang.srt.layers.attention.base import AttentionBackend
from sglang.srt.layers.attention.gqa import GQAttention
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.norm import OffsetRMSNorm
from sglang.srt.layers.parameter import LayerContext, Weight
from sglang.srt.layers.rope import Rotation
from sglang.srt.models.decoder import Decoder


class Gemma3Layer:
    """`x + norm(attention(norm(x)))`, then `x + norm(mlp(norm(x)))`; a DecoderLayer."""

    def __init__(self, spec: ModelSpec, context: LayerContext, index: int) -> None:
        prefix = f"model.layers.{index}"

        def norm(name: str) -> OffsetRMSNorm:
            return OffsetRMSNorm(context, f"{prefix}.{name}", spec.hidden_size, spec.rms_norm_eps)

        self._before = norm("input_layernorm")
        self._attention = GQAttention(context, f"{prefix}.self_attn", spec, index, OffsetRMSNorm)
        self._after = norm("post_attention_layernorm")
        self._mlp_before = norm("pre_feedforward_layernorm")
        activation = gated_activation(spec.activation)
        self._mlp = GatedMLP(context, f"{prefix}.mlp", spec.hidden_size, spec.intermediate_size, activation)
        self._mlp_after = norm("post_feedforward_layernorm")

    def attention(
        self, x: torch.Tensor, rotation: Rotation, backend: AttentionBackend, rows: torch.Tensor | None
    ) -> torch.Tensor:
        attended = self._after(self._attention(self._before(x), rotation, backend, rows))
        return add_residual(attended, x if rows is None else x[rows])

    def store_kv(self, x: torch.Tensor, rotation: Rotation, backend: AttentionBackend) -> None:
        self._attention.store(self._before(x), rotation, backend)

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        return add_residual(self._mlp_after(self._mlp(self._mlp_before(x))), x)

    def weights(self) -> Iterator[Weight]:
        parts = (self._before, self._attention, self._after, self._mlp_before, self._mlp, self._mlp_after)
        for part in parts:
            yield from part.weights()


def gemma3(spec: ModelSpec, context: LayerContext) -> Decoder:
    """The decoder of a Gemma 3 config."""
    layers = [Gemma3Layer(spec, context, index) for index in range(spec.num_layers)]
    norm = OffsetRMSNorm(context, "model.norm", spec.hidden_size, spec.rms_norm_eps)
    return Decoder(spec, context, layers, norm=norm, embedding_scale=spec.hidden_size**0.5)


MODEL = gemma3
