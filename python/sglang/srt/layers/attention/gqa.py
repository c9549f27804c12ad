"""The grouped-query attention block of a decoder layer (Ainslie et al. 2023, https://arxiv.org/abs/2305.13245)."""

from collections.abc import Iterator

import torch

from sglang.srt.config.model import ModelSpec
from sglang.srt.layers.attention.base import AttentionBackend
from sglang.srt.layers.linear import ColumnLinear, Part, RowLinear
from sglang.srt.layers.norm import OffsetRMSNorm, RMSNorm
from sglang.srt.layers.parameter import LayerContext, Weight
from sglang.srt.layers.rope import Rotation


class GQAttention:
    """qkv projection, optional norm of Q and K heads, rope, paged attention, output projection; `[tokens, hidden]`."""

    def __init__(
        self,
        context: LayerContext,
        prefix: str,
        spec: ModelSpec,
        layer: int,
        norm: type[RMSNorm] | type[OffsetRMSNorm] = RMSNorm,
    ) -> None:
        """`norm`: of Q and K heads, where the model has one."""
        dim = spec.head_dim
        heads = context.group.share(spec.num_heads, "attention heads")
        kv_heads = context.group.kv_share(spec.num_kv_heads)
        columns = range(heads.start * dim, heads.stop * dim)
        kv_columns = range(kv_heads.start * dim, kv_heads.stop * dim)
        parts = [
            Part("q_proj", spec.num_heads * dim, columns),
            Part("k_proj", spec.num_kv_heads * dim, kv_columns),
            Part("v_proj", spec.num_kv_heads * dim, kv_columns),
        ]
        # The last layer of a step without logits needs K and V alone.
        tail = 1 if layer == spec.num_layers - 1 else 0
        self._qkv = ColumnLinear(
            context, prefix, spec.hidden_size, parts, fused="qkv_proj", bias=spec.qkv_bias, tail=tail
        )
        width = spec.num_heads * dim
        self._output = RowLinear(context, f"{prefix}.o_proj", width, columns, spec.hidden_size, bias=spec.output_bias)
        self._q_norm = norm(context, f"{prefix}.q_norm", dim, spec.rms_norm_eps) if spec.qk_norm else None
        self._k_norm = norm(context, f"{prefix}.k_norm", dim, spec.rms_norm_eps) if spec.qk_norm else None
        self._layer = layer
        self._heads = len(heads)
        self._kv_heads = len(kv_heads)
        self._head_dim = dim

    def __call__(
        self, x: torch.Tensor, rotation: Rotation, backend: AttentionBackend, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Attend; with `rows` (int64), only those tokens' outputs are projected and returned."""
        q, kv = self._project(x, rotation)
        attended = backend.attend(self._layer, q, kv)
        return self._output(attended if rows is None else attended[rows])

    def store(self, x: torch.Tensor, rotation: Rotation, backend: AttentionBackend) -> None:
        """Only compute and store K and V; the model's last layer alone can do that."""
        kv = self._qkv.call_tail(x).view(x.shape[0], 2, self._kv_heads, self._head_dim)
        if self._k_norm is not None:
            self._k_norm.in_place(kv[:, 0])
        rotation.turn(kv[:, 0])
        backend.store(self._layer, kv)

    def weights(self) -> Iterator[Weight]:
        """All projections and norms."""
        yield from self._qkv.weights()
        yield from self._output.weights()
        for norm in (self._q_norm, self._k_norm):
            if norm is not None:
                yield from norm.weights()

    def _project(self, x: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
        """Q `[tokens, heads, dim]` and KV `[tokens, 2, kv_heads, dim]`, normed and rotated."""
        qkv = self._qkv(x).view(x.shape[0], self._heads + 2 * self._kv_heads, self._head_dim)
        rotated = self._heads + self._kv_heads
        if self._q_norm is not None and self._k_norm is not None:
            self._q_norm.in_place(qkv[:, : self._heads])
            self._k_norm.in_place(qkv[:, self._heads : rotated])
        rotation.turn(qkv[:, :rotated])
        kv = qkv[:, self._heads :].view(x.shape[0], 2, self._kv_heads, self._head_dim)
        return qkv[:, : self._heads], kv
