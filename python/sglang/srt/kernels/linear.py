"""Products with a weight matrix, which on CPU is repacked once for the bfloat16 kernels."""

import torch
from torch.nn import functional as F

from sglang.srt.kernels.cpu.arena import returnable
from sglang.srt.kernels.cpu.ops import PackedWeight, best_kernels, pack_weight, quantise_weight


class Matrix:
    """A weight `[out, in]`; calling it computes `x @ weight.T + bias` for `[tokens, in]`.

    `weight` is for the loader to fill. `pack` may replace it by the native kernels' own layout. Against oneDNN's packed
    weights, with AMX and one thread, that is 1.3-2.1 times as fast up to 32 tokens and as fast at 512.
    """

    def __init__(self, outputs: int, inputs: int, dtype: torch.dtype, *, bits: int = 16) -> None:
        """`bits`: 8 to keep a bfloat16 weight as int8 with a scale for each output, once it is packed."""
        self._bits = bits
        self.weight = returnable(outputs, inputs, dtype)
        self._packed: PackedWeight | None = None

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if self._packed is None:
            return F.linear(x, self.weight, bias)
        return best_kernels().linear(x, self._packed, bias)

    @property
    def packed(self) -> PackedWeight | None:
        """In the native kernels' layout; None before `pack`, and for what stays as it was."""
        return self._packed

    def take(self, numbers: torch.Tensor) -> torch.Tensor:
        """Rows of the weight by int64 `[rows]` numbers: `[rows, in]`. Not of an int8 weight.

        Raises IndexError for a number that it does not have.
        """
        if not self.weight.is_cpu:
            return F.embedding(numbers, self.weight)
        return best_kernels().lookup(numbers, self.weight if self._packed is None else self._packed)

    def pack(self) -> None:
        """Repack bfloat16 on a CPU, and give up the weight's memory. Not to be called twice.

        float32 stays: torch's own product is exact and as fast as its memory.
        """
        if self.weight.dtype is not torch.bfloat16 or not self.weight.is_cpu:
            return
        self._packed = quantise_weight(self.weight) if self._bits == 8 else pack_weight(self.weight)
        self.weight = self.weight.new_empty(0)
