"""The native kernels as functions of tensors. Here shapes, types and strides are checked; below are only addresses."""

from functools import cache
from typing import NamedTuple

import torch

from sglang.srt.kernels.cpu import _native
from sglang.srt.kernels.cpu.arena import weight_arena

TYPES = (torch.float32, torch.bfloat16)
"""What the kernels compute on; arithmetic is float32 in either case."""


STRIP, DEPTH = 64, 32
"""Packed weights are padded to multiples of these: outputs and inputs (table.hpp)."""


class PackedWeight(NamedTuple):
    """A weight in the order in which the kernels read it."""

    data: torch.Tensor
    """bfloat16, or int8 in units of each output's scale."""
    outputs: int
    inputs: int
    scales: torch.Tensor | None = None
    """float32, a multiple of 64 long; None for bfloat16."""


class DrawFilters(NamedTuple):
    """How each row's distribution is changed before a token is drawn. Columns `[rows]`."""

    temperature: torch.Tensor
    """float32; a row of 0 takes the first of the largest."""
    top_k: torch.Tensor
    """int64: the k most likely are kept, and what ties with the last of them; the vocabulary's size keeps all."""
    top_p: torch.Tensor
    """float32 in (0, 1]: the most likely until they have this share of the mass that top-k left, and ties."""
    min_p: torch.Tensor
    """float32 in [0, 1]: those at least so likely as the most likely one times this."""


class CpuKernels:
    """The kernels of one instruction set. They run on the calling thread and on helpers that belong to it."""

    def __init__(self, level: str) -> None:
        """`level`: one of `levels()`; raises ValueError for any other."""
        self.native = _native.Kernels(level)
        self.level = level

    def linear(self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
        """bfloat16 `[rows, inputs]` -> `[rows, outputs]`: `x @ weight.T + bias`, summed in float32, rounded once."""
        rows, inputs = x.shape
        if inputs != weight.inputs or x.dtype is not torch.bfloat16:
            raise ValueError(f"{x.dtype} {list(x.shape)} for a bfloat16 weight of {weight.inputs} inputs")
        if x.stride(1) != 1:
            x = x.contiguous()
        if bias is not None and (bias.shape != (weight.outputs,) or bias.dtype is not torch.bfloat16):
            raise ValueError(f"{bias.dtype} bias {list(bias.shape)} for {weight.outputs} outputs")
        out = x.new_empty(rows, weight.outputs)
        if rows:
            self.native.linear(
                x.data_ptr(), x.stride(0), rows, inputs, weight.data.data_ptr(), weight.outputs,
                0 if bias is None else bias.data_ptr(), out.data_ptr(), weight.outputs,
                0 if weight.scales is None else weight.scales.data_ptr(),
            )  # fmt: skip
        return out

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Norm over the last axis of `[rows, size]` or `[rows, heads, size]`; `out` may be `x`."""
        if out is None:
            out = x.new_empty(x.shape)
        rows, size = x.shape[0], x.shape[-1]
        heads = x.shape[1] if x.dim() == 3 else 1
        _check(x, out.dtype is x.dtype is weight.dtype and out.shape == x.shape and weight.shape == (size,))
        _check(weight, weight.is_contiguous())
        if x.stride(-1) != 1 or out.stride(-1) != 1:
            raise ValueError("the last axis must be contiguous")
        self.native.norm(
            x.data_ptr(), x.stride(0), x.stride(-2), weight.data_ptr(), out.data_ptr(), out.stride(0), out.stride(-2),
            rows, heads, size, eps, x.dtype is torch.bfloat16,
        )  # fmt: skip
        return out

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """`[rows, 2 * width]`, gate beside up -> `silu(gate) * up`, `[rows, width]`."""
        rows, both = gate_up.shape
        _check(gate_up, both % 2 == 0 and gate_up.stride(1) == 1)
        out = gate_up.new_empty(rows, both // 2)
        self.native.gate(
            gate_up.data_ptr(), gate_up.stride(0), out.data_ptr(), rows, both // 2, out.dtype is torch.bfloat16
        )
        return out

    def rotate(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> None:
        """Rotary embedding of `[rows, heads, dim]` in place; `cosine` and `sine` `[rows, dim]` of its type.

        The halves of a head are rotated against each other; the sine's first half is negated.
        """
        rows, heads, dim = x.shape
        _check(x, dim % 2 == 0 and x.stride(2) == 1)
        for table in (cosine, sine):
            _check(table, table.dtype is x.dtype and table.numel() == rows * dim and table.is_contiguous())
        self.native.rotate(
            x.data_ptr(), x.stride(0), x.stride(1), cosine.data_ptr(), sine.data_ptr(), rows, heads, dim,
            x.dtype is torch.bfloat16,
        )  # fmt: skip

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """`x += y` for contiguous `[rows, width]` of one type; returns `x`."""
        _check(x, x.dim() == 2 and x.shape == y.shape and x.dtype is y.dtype)
        _check(y, x.is_contiguous() and y.is_contiguous())
        rows, width = x.shape
        self.native.add(x.data_ptr(), y.data_ptr(), rows, width, x.dtype is torch.bfloat16)
        return x

    def lookup(self, numbers: torch.Tensor, table: torch.Tensor | PackedWeight) -> torch.Tensor:
        """Rows of a `[entries, width]` table, or of a packed bfloat16 weight, by int64 `[rows]` numbers.

        Raises IndexError for a number that the table does not have.
        """
        packed = isinstance(table, PackedWeight)
        if isinstance(table, PackedWeight):
            data, entries, width = table.data, table.outputs, table.inputs
        else:
            data, (entries, width) = table, table.shape
        _check(data, data.is_contiguous())
        if numbers.dtype is not torch.int64 or numbers.dim() != 1 or not numbers.is_contiguous():
            raise ValueError(f"{numbers.dtype} numbers {list(numbers.shape)} of rows")
        out = data.new_empty(numbers.shape[0], width)
        self.native.lookup(
            numbers.data_ptr(), data.data_ptr(), packed, entries, width, out.data_ptr(), numbers.shape[0],
            data.dtype is torch.bfloat16,
        )  # fmt: skip
        return out

    def turns(
        self, positions: torch.Tensor, inverse: torch.Tensor, magnitude: float, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and signed sine `[rows, 2 * pairs]` for `rotate`, of int64 `[rows]` positions.

        `inverse`: float32 `[pairs]`, radians a position, as the angles are; what `magnitude` multiplies is rounded.
        """
        for given, kind in ((positions, torch.int64), (inverse, torch.float32)):
            if given.dtype is not kind or given.dim() != 1 or not given.is_contiguous() or not given.is_cpu:
                raise ValueError(f"{given.dtype} {list(given.shape)} in place of {kind} [n]")
        rows, pairs = positions.shape[0], inverse.shape[0]
        cosine = positions.new_empty(rows, 2 * pairs, dtype=dtype)
        sine = positions.new_empty(rows, 2 * pairs, dtype=dtype)
        _check(cosine, True)
        self.native.turns(
            positions.data_ptr(), inverse.data_ptr(), pairs, magnitude, cosine.data_ptr(), sine.data_ptr(), rows,
            dtype is torch.bfloat16,
        )  # fmt: skip
        return cosine, sine

    def argmax(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, size]` -> int64 `[rows]`: the first of the largest of each row; NaN counts as less than anything."""
        rows, size = x.shape
        _check(x, size > 0 and x.stride(1) == 1)
        out = torch.empty(rows, dtype=torch.int64)
        self.native.argmax(x.data_ptr(), x.stride(0), out.data_ptr(), rows, size, x.dtype is torch.bfloat16)
        return out

    def draw(self, x: torch.Tensor, filters: DrawFilters, uniform: torch.Tensor) -> torch.Tensor:
        """Logits `[rows, size]` -> int64 `[rows]`: the token at `uniform` (float64 `[rows]`, from 0 to below 1) of each
        row's distribution function over the tokens that its filters keep, in the order of the vocabulary.
        """
        rows, size = x.shape
        _check(x, size > 0 and x.stride(1) == 1)
        columns = (*filters, uniform)
        kinds = (torch.float32, torch.int64, torch.float32, torch.float32, torch.float64)
        for column, kind in zip(columns, kinds, strict=True):
            if column.shape != (rows,) or column.dtype is not kind or not column.is_contiguous() or not column.is_cpu:
                raise ValueError(f"{column.dtype} {list(column.shape)} in place of {kind} [{rows}]")
        out = torch.empty(rows, dtype=torch.int64)
        temperature, top_k, top_p, min_p, place = (column.data_ptr() for column in columns)
        self.native.draw(
            x.data_ptr(), x.stride(0), x.dtype is torch.bfloat16, temperature, top_k, top_p, min_p, place,
            out.data_ptr(), rows, size,
        )  # fmt: skip
        return out


def levels() -> tuple[str, ...]:
    """The instruction sets that this CPU has kernels for, slowest first."""
    return tuple(_native.levels())


@cache
def best_kernels() -> CpuKernels:
    """The fastest that this CPU has."""
    return CpuKernels(levels()[-1])


def pack_weight(weight: torch.Tensor) -> PackedWeight:
    """Repack bfloat16 `[outputs, inputs]`; the packed copy lies on huge pages and is padded to 64 x 32."""
    outputs, inputs = weight.shape
    _check(weight, weight.dtype is torch.bfloat16 and weight.stride(1) == 1)
    data = weight_arena().take(_native.packed_size(outputs, inputs), torch.bfloat16)
    _native.pack(weight.data_ptr(), weight.stride(0), outputs, inputs, data.data_ptr())
    return PackedWeight(data, outputs, inputs)


def quantise_weight(weight: torch.Tensor) -> PackedWeight:
    """Repack `[outputs, inputs]` as int8 with a scale for each output: its largest weight is 127 of them.

    Rounding is to nearest; a packed int8 is exact in bfloat16, so the products are those of the rounded weights.
    """
    outputs, inputs = weight.shape
    strips, depth = -(-outputs // STRIP), -(-inputs // DEPTH) * DEPTH
    scales = torch.ones(strips * STRIP)
    scales[:outputs] = (weight.abs().amax(dim=1).float() / 127).clamp(min=torch.finfo(torch.float32).tiny)
    data = weight_arena().take(strips * STRIP * depth, torch.int8)
    packed = data.view(strips, depth // 2, STRIP, 2)
    for strip in range(strips):
        rows = weight[strip * STRIP : (strip + 1) * STRIP].float()
        whole = torch.zeros(STRIP, depth)
        whole[: len(rows), :inputs] = rows / scales[strip * STRIP : strip * STRIP + len(rows)].unsqueeze(1)
        packed[strip] = whole.round_().to(torch.int8).view(STRIP, depth // 2, 2).transpose(0, 1)
    return PackedWeight(data, outputs, inputs, scales)


def native_type(tensor: torch.Tensor) -> bool:
    """Whether the kernels can take it."""
    return tensor.is_cpu and tensor.dtype in TYPES


def _check(tensor: torch.Tensor, fits: bool) -> None:
    if not fits or not native_type(tensor):
        raise ValueError(f"{tensor.dtype} {list(tensor.shape)}, strides {tensor.stride()}, does not fit this kernel")
