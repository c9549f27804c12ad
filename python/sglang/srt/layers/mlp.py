"""The gated feed-forward block."""

from collections.abc import Iterator

import torch

from sglang.srt.layers.activation import Activation
from sglang.srt.layers.linear import ColumnLinear, Part, RowLinear
from sglang.srt.layers.parameter import LayerContext, Weight


class GatedMLP:
    """`down(act(gate(x)) * up(x))` on `[tokens, hidden]` (Shazeer 2020, https://arxiv.org/abs/2002.05202)."""

    def __init__(
        self,
        context: LayerContext,
        prefix: str,
        hidden: int,
        intermediate: int,
        activation: Activation,
        *,
        bias: bool = False,
        partial: bool = False,
    ) -> None:
        """`partial`: the caller adds up the output over ranks."""
        share = context.group.share(intermediate, "feed-forward columns")
        parts = [Part("gate_proj", intermediate, share), Part("up_proj", intermediate, share)]
        self._gate_up = ColumnLinear(context, prefix, hidden, parts, fused="gate_up_proj", bias=bias)
        self._down = RowLinear(context, f"{prefix}.down_proj", intermediate, share, hidden, bias=bias, partial=partial)
        self._activation = activation

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._down(self._activation(self._gate_up(x)))

    def weights(self) -> Iterator[Weight]:
        """Both projections."""
        yield from self._gate_up.weights()
        yield from self._down.weights()
