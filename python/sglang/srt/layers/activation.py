"""Gated activations."""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from sglang.srt.errors import CheckpointError
from sglang.srt.kernels.activation import silu_and_mul

Activation = Callable[[torch.Tensor], torch.Tensor]
"""`[tokens, 2 * width]`, gate beside up -> `[tokens, width]`; may overwrite its input."""


def gated_activation(name: str) -> Activation:
    """By the config's name; raises CheckpointError for one that is not supported."""
    if name == "silu":
        return silu_and_mul
    if name == "gelu_pytorch_tanh":
        return gelu_tanh_and_mul
    raise CheckpointError(f"activation {name!r} is not supported; supported: silu, gelu_pytorch_tanh")


def gelu_tanh_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`gelu(gate) * up` with gelu's tanh approximation (Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh").mul_(up)
