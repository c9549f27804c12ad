"""A token of each row by its distribution, after temperature, top-k, top-p and min-p."""

import torch

from sglang.srt.kernels.cpu.ops import DrawFilters, best_kernels

__all__ = ["DrawFilters", "draw"]


def draw(logits: torch.Tensor, filters: DrawFilters, uniform: torch.Tensor) -> torch.Tensor:
    """`[rows, vocab]` -> int64 `[rows]`; see CpuKernels.draw.

    torch's sort, softmax and sums took about as long as the forward pass or longer: 32-121 ms for 16 rows of 49,152 on
    two cores (docs/performance.md).
    """
    rows = logits if logits.stride(1) == 1 else logits.contiguous()
    return best_kernels().draw(rows, filters, uniform)
