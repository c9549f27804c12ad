"""Products with a weight matrix, which on CPU is repacked once for the bfloat16 kernels."""

import torch
from torch.nn import functional as F


class Matrix:
    """A weight `[out, in]`; calling it computes `x @ weight.T + bias` for `[tokens, in]`.

    `weight` is for the loader to fill. `pack` may replace it by oneDNN's own layout, from which decode steps read
    faster: 3.5 MB took 290 us instead of 410 at one token, 305 instead of 456 at eight (bfloat16, one thread).
    """

    def __init__(self, outputs: int, inputs: int, dtype: torch.dtype) -> None:
        self.weight = torch.empty(outputs, inputs, dtype=dtype)
        self._packed: torch.Tensor | None = None

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if self._packed is None:
            return F.linear(x, self.weight, bias)
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, bias, "none", [], "")
        return out

    def pack(self, *, keep: bool = False) -> None:
        """Repack where that helps: bfloat16 on a CPU that oneDNN has bfloat16 kernels for.

        The weight's memory is given up unless `keep` says that someone else reads it too. Not to be called twice.
        """
        if self.weight.dtype is not torch.bfloat16 or not packing_helps():
            return
        self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight)
        if not keep:
            self.weight = self.weight.new_empty(0)


def packing_helps() -> bool:
    """Whether oneDNN has native bfloat16 kernels here."""
    names = ("_is_mkldnn_bf16_supported", "_reorder_linear_weight", "_linear_pointwise")
    if not torch._C._has_mkldnn or not all(hasattr(torch.ops.mkldnn, name) for name in names):
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
