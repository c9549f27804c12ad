"""Sums of the residual stream."""

import torch

from sglang.srt.kernels.cpu.ops import best_kernels, native_type


def add_residual(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """`x + residual`, both `[tokens, hidden]`, written to `x`, which is returned."""
    if native_type(x) and x.is_contiguous() and residual.is_contiguous():
        return best_kernels().add(x, residual)
    return x.add_(residual)
