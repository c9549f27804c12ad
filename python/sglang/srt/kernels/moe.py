"""What a sparse layer computes between its input and its output."""

from collections.abc import Sequence

import torch

from sglang.srt.kernels.cpu.ops import best_kernels, native_type
from sglang.srt.kernels.cpu.sparse import PackedExperts, compute_experts, narrow, pack_experts, route
from sglang.srt.kernels.linear import Matrix

__all__ = ["PackedExperts", "gated_experts", "group_experts", "round_sum", "softmax_top_k"]


def softmax_top_k(
    x: torch.Tensor, weight: torch.Tensor, top_k: int, *, normalize: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The most likely experts (Shazeer et al. 2017, https://arxiv.org/abs/1701.06538); see `route`."""
    return route(best_kernels(), x, weight, top_k, normalize=normalize, scale=scale)


def group_experts(gate_up: Sequence[Matrix], down: Sequence[Matrix], first: int) -> PackedExperts | None:
    """Experts' matrices as one operand of `gated_experts`, once all are packed; None for what is not."""
    packed = [[matrix.packed for matrix in matrices] for matrices in (gate_up, down)]
    one, two = ([weight for weight in weights if weight is not None] for weights in packed)
    return pack_experts(one, two, first) if one and len(one) == len(two) == len(gate_up) else None


def gated_experts(x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor, experts: PackedExperts) -> torch.Tensor:
    """All experts that were hit, as one call; see `compute_experts`."""
    return compute_experts(best_kernels(), x, chosen, shares, experts)


def round_sum(x: torch.Tensor, added: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """float32 `[tokens, hidden]`, plus `added` of `dtype` where it is given, rounded once to `dtype`."""
    if native_type(x) and x.is_contiguous() and (added is None or added.is_contiguous()):
        return narrow(best_kernels(), x, added, dtype)
    return (x if added is None else x + added).to(dtype)
