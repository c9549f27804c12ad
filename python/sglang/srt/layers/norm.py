"""Root mean square norm (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467)."""

from collections.abc import Iterator

import torch

from sglang.srt.kernels.norm import rms_norm
from sglang.srt.layers.parameter import LayerContext, Weight, whole


class RMSNorm:
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis of `[..., size]`, in float32; not sharded."""

    def __init__(self, context: LayerContext, name: str, size: int, eps: float) -> None:
        self._name = name
        self._eps = eps
        self.weight = torch.empty(size, dtype=context.dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self._eps)

    def in_place(self, x: torch.Tensor) -> None:
        """The same, to `x` itself."""
        rms_norm(x, self.weight, self._eps, out=x)

    def weights(self) -> Iterator[Weight]:
        """The scale."""
        yield whole(f"{self._name}.weight", self.weight)


class OffsetRMSNorm:
    """Gemma's form: the checkpoint's weight is the scale less 1, and rounding comes after scaling; not sharded."""

    def __init__(self, context: LayerContext, name: str, size: int, eps: float) -> None:
        self._name = name
        self._eps = eps
        self._scale = torch.empty(size, dtype=torch.float32)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x.to(torch.float32), self._scale, self._eps).to(x.dtype)

    def in_place(self, x: torch.Tensor) -> None:
        """The same, to `x` itself."""
        x.copy_(self(x))

    def weights(self) -> Iterator[Weight]:
        """The scale."""
        yield whole(f"{self._name}.weight", self._scale)._replace(ready=self._add_one)

    def _add_one(self) -> None:
        self._scale.add_(1.0)
