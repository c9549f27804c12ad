"""Gated activations."""

import torch
from torch.nn import functional as F

from sglang.srt.kernels.cpu.ops import best_kernels, native_type


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`[tokens, 2 * width]`, gate beside up -> `silu(gate) * up`, `[tokens, width]`."""
    if native_type(gate_up):
        return best_kernels().silu_and_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
