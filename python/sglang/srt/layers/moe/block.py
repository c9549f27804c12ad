"""A sparse feed-forward block: router, routed experts, and experts that see every token."""

from collections.abc import Iterator

import torch

from sglang.srt.config.model_moe import MoESpec
from sglang.srt.kernels.moe import round_sum
from sglang.srt.layers.activation import Activation
from sglang.srt.layers.mlp import GatedMLP
from sglang.srt.layers.moe.exchange import ExpertExchange
from sglang.srt.layers.moe.experts import Experts
from sglang.srt.layers.moe.router import Router
from sglang.srt.layers.parameter import LayerContext, Weight


class SparseMLP:
    """`[tokens, hidden]` -> the same; one all-reduce for routed and shared experts together.

    Where attention is data-parallel the routed experts are those of all replicas, which call together; shared experts
    see a replica's own tokens.
    """

    def __init__(self, context: LayerContext, prefix: str, hidden: int, spec: MoESpec, activation: Activation) -> None:
        self._router = Router(context, f"{prefix}.gate", hidden, spec)
        self._experts = Experts(context, f"{prefix}.experts", hidden, spec.intermediate, spec.experts, activation)
        ranks = context.expert_ranks
        self._routed = self._experts if ranks is None else ExpertExchange(ranks, self._experts)
        self._shared: GatedMLP | None = None
        if spec.shared_intermediate:
            self._shared = GatedMLP(
                context, f"{prefix}.shared_experts", hidden, spec.shared_intermediate, activation, partial=True
            )
        self._collectives = context.collectives

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        routed = self._routed(x, *self._router(x))
        shared = None if self._shared is None else self._shared(x)
        return self._collectives.all_reduce(round_sum(routed, shared, x.dtype))

    def weights(self) -> Iterator[Weight]:
        """Router, routed experts, shared experts."""
        yield from self._router.weights()
        yield from self._experts.weights()
        if self._shared is not None:
            yield from self._shared.weights()
