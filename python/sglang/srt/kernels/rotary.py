"""Rotary embedding of heads whose halves are rotated against each other."""

import torch

from sglang.srt.kernels.cpu.ops import best_kernels, native_type


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> None:
    """Rotate `[tokens, heads, dim]` in place; `cosine` and `sine` `[tokens, 1, dim]`, the sine's first half negated.

    Swapping the halves is a roll by half the head, which with the signed sine makes rope three operations of torch.
    """
    if native_type(x):
        best_kernels().rotate(x, cosine, sine)
    else:
        x.copy_(torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, -1), sine))
