"""The most likely token of each row."""

import torch

from sglang.srt.kernels.cpu.ops import best_kernels, native_type


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """`[rows, vocab]` -> int64 `[rows]`: the first of the largest. torch takes 2-5 ms for 8 x 49,152 in bfloat16."""
    if native_type(logits) and logits.stride(1) == 1:
        return best_kernels().argmax(logits)
    return logits.argmax(dim=-1)
