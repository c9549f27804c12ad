"""Rotary embedding of heads whose halves are rotated against each other."""

import torch

from sglang.srt.kernels.cpu.ops import TYPES, best_kernels, native_type


def turns(
    positions: torch.Tensor, inverse: torch.Tensor, magnitude: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and signed sine `[tokens, 1, dim]` of `dtype` at int64 `positions` `[tokens]`.

    `inverse`: float32 `[dim / 2]`, radians a position. Angles are float32; what is multiplied by `magnitude` is rounded
    once. The halves of a cosine are the same, the first half of a sine is negated.
    """
    if native_type(inverse) and dtype in TYPES:
        cosine, sine = best_kernels().turns(positions, inverse, magnitude, dtype)
        return cosine.unsqueeze(1), sine.unsqueeze(1)
    angles = positions.to(torch.float32).unsqueeze(-1) * inverse
    cosine, sine = angles.cos() * magnitude, angles.sin() * magnitude
    return _pair(cosine, cosine, dtype), _pair(-sine, sine, dtype)


def _pair(first: torch.Tensor, second: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.cat((first, second), dim=-1).to(dtype).unsqueeze(1)


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> None:
    """Rotate `[tokens, heads, dim]` in place; `cosine` and `sine` `[tokens, 1, dim]`, the sine's first half negated.

    Swapping the halves is a roll by half the head, which with the signed sine makes rope three operations of torch.
    """
    if native_type(x):
        best_kernels().rotate(x, cosine, sine)
    else:
        x.copy_(torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, -1), sine))
