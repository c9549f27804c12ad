"""Gated activations."""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from sglang.srt.errors import CheckpointError

Activation = Callable[[torch.Tensor], torch.Tensor]
"""`[tokens, 2 * width]`, gate beside up -> `[tokens, width]`; may overwrite its input."""


def gated_activation(name: str) -> Activation:
    """By the config's name; raises CheckpointError for one that is not supported."""
    if name == "silu":
        return silu_and_mul
    raise CheckpointError(f"activation {name!r} is not supported; supported: silu")


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up`."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
