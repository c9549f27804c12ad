"""fp8 checkpoints, dequantised tensor by tensor as they are read."""

from collections.abc import Mapping

import torch

from sglang.srt.config.model_files import FP8
from sglang.srt.config.model_quant import QuantSpec
from sglang.srt.models.checkpoint import SafetensorsCheckpoint

SCALES = ("_scale_inv", "_scale")
"""Suffixes of a scale's name, after the name of its weight. Both multiply; DeepSeek's name notwithstanding."""
ACTIVATIONS = (".input_scale",)
"""Scales of activations, which are computed in the model's dtype here."""


class Fp8Checkpoint:
    """A Checkpoint of `value * scale` in float32, under the weights' names; scales are not seen from outside."""

    def __init__(self, inner: SafetensorsCheckpoint, quant: QuantSpec) -> None:
        self._inner = inner
        self._block = quant.block
        self._all = inner.shapes()
        self._packed = [name for name in self._all if inner.dtype(name) == FP8]
        pairs = ((name, self._scale_of(name)) for name in self._packed)
        self._scales = {name: scale for name, scale in pairs if scale is not None}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        hidden = set(self._scales.values())
        return {
            name: shape for name, shape in self._all.items() if name not in hidden and not name.endswith(ACTIVATIONS)
        }

    def problems(self) -> list[str]:
        lines = self._inner.problems()
        missing = [name for name in self._packed if name not in self._scales]
        if missing:
            lines.append(f"missing scale: {', '.join(missing)}")
        wrong = [
            f"{scale} {list(self._all[scale])} instead of {' or '.join(str(list(s)) for s in fits)}"
            for name, scale in self._scales.items()
            if self._all[scale] not in (fits := self._fitting(self._all[name]))
        ]
        if wrong:
            lines.append(f"wrong shape of scale: {', '.join(wrong)}")
        return lines

    def read(self, name: str) -> torch.Tensor:
        if name not in self._scales:
            return self._inner.read(name)
        scale = self._inner.read(self._scales[name]).to(torch.float32, copy=True)
        return dequantise(self._inner.read(name), scale, self._block)

    def _scale_of(self, name: str) -> str | None:
        return next((name + suffix for suffix in SCALES if name + suffix in self._all), None)

    def _fitting(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Shapes that the scale of a weight of this shape may have."""
        if self._block is None:
            return [(), (1,), (*shape[:-1], 1)]
        rows, columns = self._block
        return [(*shape[:-2], -(-shape[-2] // rows), -(-shape[-1] // columns))] if len(shape) > 1 else []


def dequantise(values: torch.Tensor, scale: torch.Tensor, block: tuple[int, int] | None) -> torch.Tensor:
    """`values` fp8 `[..., out, in]` times `scale`, float32, the blocks' last rows and columns cut off.

    `scale`: one number, one a row `[..., out, 1]`, or one a block `[..., out / rows, in / columns]`, float32.
    """
    if block is None:
        return values.to(torch.float32).mul_(scale)
    rows, columns = block
    out = values.to(torch.float32)
    flat, scales = out.view(-1, *out.shape[-2:]), scale.view(-1, *scale.shape[-2:])
    for matrix, factors in zip(flat, scales, strict=True):
        for index, factor in enumerate(factors):
            # Row by row of blocks, so that no second tensor of the weight's size is made.
            matrix[index * rows : (index + 1) * rows] *= factor.repeat_interleave(columns)[: out.shape[-1]]
    return out
