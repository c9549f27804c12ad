"""Root mean square norm."""

import torch
from torch.nn import functional as F

from sglang.srt.kernels.cpu.ops import best_kernels, native_type


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None) -> torch.Tensor:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis, computed in float32 and rounded once.

    `[rows, size]` or `[rows, heads, size]`; `out` may be `x`. torch's own took 11% of a bfloat16 decode step on a CPU.
    """
    if native_type(x):
        return best_kernels().rms_norm(x, weight, eps, out)
    normed = F.rms_norm(x, (x.shape[-1],), weight, eps)
    return normed if out is None else out.copy_(normed)
