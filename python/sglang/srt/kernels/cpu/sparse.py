"""A sparse layer's kernels as functions of tensors: who goes to which expert, and what those compute."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from sglang.srt.kernels.cpu.ops import CpuKernels, PackedWeight, native_type


class PackedExperts(NamedTuple):
    """The feed-forward blocks of some experts, each `[2 * width, hidden]` (gate above up) and `[hidden, width]`."""

    addresses: torch.Tensor
    """int64 `[held, 4]`: gate and up, their scales, down, its scales; 0 for no scales."""
    weights: tuple[PackedWeight, ...]
    """What lies there."""
    first: int
    """The number of the first of them in the whole model."""
    hidden: int
    width: int


def pack_experts(gate_up: Sequence[PackedWeight], down: Sequence[PackedWeight], first: int) -> PackedExperts:
    """As one operand. Both lists are of the same experts, of which there is at least one.

    Raises ValueError where the shapes differ.
    """
    hidden, width = gate_up[0].inputs, down[0].inputs
    if {(w.outputs, w.inputs) for w in gate_up} != {(2 * width, hidden)} or len(gate_up) != len(down):
        raise ValueError(f"{len(gate_up)} experts' gate and up are not {len(down)} times [{2 * width}, {hidden}]")
    if {(w.outputs, w.inputs) for w in down} != {(hidden, width)}:
        raise ValueError(f"the experts' down projections are not all [{hidden}, {width}]")
    rows = [[*_address(a), *_address(b)] for a, b in zip(gate_up, down, strict=True)]
    return PackedExperts(torch.tensor(rows, dtype=torch.int64), (*gate_up, *down), first, hidden, width)


def compute_experts(
    kernels: CpuKernels, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor, experts: PackedExperts
) -> torch.Tensor:
    """bfloat16 `[rows, hidden]` -> float32: for each row the sum of `share * down(silu(gate) * up)` of its experts.

    `chosen` int64 and `shares` float32 `[rows, top_k]`; experts that are not held are passed over. What each expert
    answers is rounded to bfloat16, as one layer by itself would be.
    """
    rows, hidden = x.shape
    if x.dtype is not torch.bfloat16 or not x.is_cpu or hidden != experts.hidden or x.stride(1) != 1:
        raise ValueError(f"{x.dtype} {list(x.shape)} for bfloat16 experts of {experts.hidden} inputs")
    _fits(chosen, torch.int64, (rows, chosen.shape[-1]))
    _fits(shares, torch.float32, (rows, chosen.shape[-1]))
    out = x.new_empty(rows, hidden, dtype=torch.float32)
    if rows:
        kernels.native.experts(
            x.data_ptr(), x.stride(0), chosen.data_ptr(), shares.data_ptr(), chosen.shape[-1],
            experts.addresses.data_ptr(), experts.first, experts.addresses.shape[0], hidden, experts.width,
            out.data_ptr(), rows,
        )  # fmt: skip
    return out


def route(
    kernels: CpuKernels, x: torch.Tensor, weight: torch.Tensor, top_k: int, *, normalize: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `top_k` likeliest experts of each row, int64 `[rows, top_k]`, and float32 weights `[rows, top_k]`.

    Likely by a softmax over `x @ weight.T`, x `[rows, inputs]` of either type and weight float32 `[experts, inputs]`;
    likeliest first, of equals the first. `normalize` divides by the sum of those chosen; `scale` multiplies.
    """
    rows, inputs = x.shape
    experts = weight.shape[0]
    _fits(weight, torch.float32, (experts, inputs))
    if not native_type(x) or x.stride(1) != 1 or not 0 < top_k <= experts:
        raise ValueError(f"{x.dtype} {list(x.shape)} to {top_k} of {experts} experts")
    chosen = x.new_empty(rows, top_k, dtype=torch.int64)
    shares = x.new_empty(rows, top_k, dtype=torch.float32)
    if rows:
        kernels.native.route(
            x.data_ptr(), x.stride(0), x.dtype is torch.bfloat16, weight.data_ptr(), experts, inputs, top_k,
            normalize, scale, chosen.data_ptr(), shares.data_ptr(), rows,
        )  # fmt: skip
    return chosen, shares


def narrow(kernels: CpuKernels, x: torch.Tensor, added: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """float32 `[rows, width]`, plus `added` of type `dtype` where it is given, rounded to `dtype`."""
    rows, width = x.shape
    _fits(x, torch.float32, (rows, width))
    if added is not None:
        _fits(added, dtype, (rows, width))
    out = x.new_empty(rows, width, dtype=dtype)
    if not native_type(out):
        raise ValueError(f"{dtype} is no type of the kernels")
    kernels.native.narrow(
        x.data_ptr(), 0 if added is None else added.data_ptr(), out.data_ptr(), rows, width, dtype is torch.bfloat16
    )
    return out


def _address(weight: PackedWeight) -> tuple[int, int]:
    return weight.data.data_ptr(), 0 if weight.scales is None else weight.scales.data_ptr()


def _fits(tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.dtype is not dtype or tensor.shape != shape or not tensor.is_contiguous() or not tensor.is_cpu:
        raise ValueError(f"{tensor.dtype} {list(tensor.shape)} in place of {dtype} {list(shape)}")
