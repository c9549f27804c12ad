"""Which experts a token goes to, and with which weights. All in float32, as the reference implementations do."""

from collections.abc import Callable, Iterator

import torch
from torch.nn import functional as F

from sglang.srt.config.model_moe import MoESpec, Routing
from sglang.srt.kernels.moe import softmax_top_k
from sglang.srt.layers.parameter import LayerContext, Weight, whole

Choice = tuple[torch.Tensor, torch.Tensor]
"""Experts int64 `[tokens, top_k]` and their weights float32 `[tokens, top_k]`."""


class Router:
    """Scores `[tokens, hidden]` against each expert's vector and chooses top_k; every rank computes all of it."""

    def __init__(self, context: LayerContext, prefix: str, hidden: int, spec: MoESpec) -> None:
        self._prefix = prefix
        self._spec = spec
        self._weight = torch.empty(spec.experts, hidden, dtype=torch.float32)
        sigmoid = spec.routing is Routing.GROUPED_SIGMOID
        self._correction = torch.empty(spec.experts, dtype=torch.float32) if sigmoid else None

    def __call__(self, x: torch.Tensor) -> Choice:
        spec = self._spec
        if spec.routing is Routing.SOFTMAX:
            return softmax_top_k(x, self._weight, spec.top_k, normalize=spec.normalize, scale=spec.scale)
        logits = F.linear(x.to(torch.float32), self._weight)
        experts, weights = _CHOOSERS[spec.routing](logits, spec, self._correction)
        if spec.normalize:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return experts, weights * spec.scale

    def weights(self) -> Iterator[Weight]:
        """The experts' vectors, and the correction bias where routing has one."""
        yield whole(f"{self._prefix}.weight", self._weight)
        if self._correction is not None:
            yield whole(f"{self._prefix}.e_score_correction_bias", self._correction)


def _grouped_softmax(logits: torch.Tensor, spec: MoESpec, correction: torch.Tensor | None) -> Choice:
    """DeepSeek-V2's device-limited routing (https://arxiv.org/abs/2405.04434, section 2.2.2).

    A group counts as much as its best expert; outside the best groups every score is 0.
    """
    scores = logits.softmax(dim=-1)
    best = scores.view(-1, spec.groups, spec.experts // spec.groups).amax(dim=-1)
    weights, experts = scores.masked_fill(_outside(best, spec), 0.0).topk(spec.top_k, dim=-1)
    return experts, weights


def _grouped_sigmoid(logits: torch.Tensor, spec: MoESpec, correction: torch.Tensor | None) -> Choice:
    """DeepSeek-V3's routing without auxiliary loss (https://arxiv.org/abs/2412.19437, section 2.1.2).

    The correction bias takes part in choosing (a group counts as much as its two best experts), not in weighing.
    """
    scores = logits.sigmoid()
    biased = scores if correction is None else scores + correction
    pairs = biased.view(-1, spec.groups, spec.experts // spec.groups).topk(2, dim=-1).values.sum(dim=-1)
    experts = biased.masked_fill(_outside(pairs, spec), float("-inf")).topk(spec.top_k, dim=-1).indices
    return experts, scores.gather(-1, experts)


def _outside(group_scores: torch.Tensor, spec: MoESpec) -> torch.Tensor:
    """bool `[tokens, experts]`: experts that are not in the top_groups best groups of `[tokens, groups]`."""
    chosen = group_scores.topk(spec.top_groups, dim=-1).indices
    outside = torch.ones_like(group_scores, dtype=torch.bool).scatter_(-1, chosen, False)
    return outside.repeat_interleave(spec.experts // spec.groups, dim=-1)


_CHOOSERS: dict[Routing, Callable[[torch.Tensor, MoESpec, torch.Tensor | None], Choice]] = {
    Routing.GROUPED_SOFTMAX: _grouped_softmax,
    Routing.GROUPED_SIGMOID: _grouped_sigmoid,
}
