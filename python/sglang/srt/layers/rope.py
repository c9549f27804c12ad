"""Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864), Hugging Face's half-split order."""

import math
from typing import NamedTuple

import torch

from sglang.srt.config.model_rope import RopeKind, RopeSpec
from sglang.srt.kernels.rotary import rotate, turns


class Rotation(NamedTuple):
    """Cosine and signed sine of some positions, `[tokens, 1, head_dim]`; the sine's first half is negated."""

    cos: torch.Tensor
    sin: torch.Tensor

    def turn(self, x: torch.Tensor) -> None:
        """Rotate `[tokens, heads, head_dim]` in place."""
        rotate(x, self.cos, self.sin)


class RotaryEmbedding:
    """Rotations for any position, computed as they are needed: a table would cap the context and cost memory."""

    def __init__(self, spec: RopeSpec, head_dim: int, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._magnitude = spec.magnitude
        self._inverse = inverse_frequencies(spec, head_dim)

    def at(self, positions: torch.Tensor) -> Rotation:
        """`positions`: int64 `[tokens]`. Angles are float32, then rounded to the model's dtype."""
        return Rotation(*turns(positions, self._inverse, self._magnitude, self._dtype))


def pairs_to_halves(x: torch.Tensor) -> torch.Tensor:
    """Reorder the last axis from pairs (2i, 2i+1) to halves (i, i + n/2), as Rotation turns them; a copy."""
    return x.reshape(*x.shape[:-1], -1, 2).transpose(-1, -2).flatten(-2)


def inverse_frequencies(spec: RopeSpec, head_dim: int) -> torch.Tensor:
    """Radians a position for each pair of dimensions, float32 `[head_dim / 2]`."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).to(torch.float32) / head_dim
    inverse = 1.0 / (spec.theta**exponents)
    if spec.kind is RopeKind.LINEAR:
        return inverse / spec.factor
    if spec.kind is RopeKind.LLAMA3:
        return _llama3(spec, inverse)
    if spec.kind is RopeKind.YARN:
        return _yarn(spec, inverse)
    return inverse


def _yarn(spec: RopeSpec, inverse: torch.Tensor) -> torch.Tensor:
    """YaRN's "NTK by parts" (Peng et al. 2023, https://arxiv.org/abs/2309.00071, section 3.2).

    A pair that turns more than `beta_fast` times within the original context keeps its frequency, one that turns less
    than `beta_slow` times is slowed by `factor`; a linear ramp over the pairs' indices joins them.
    """
    pairs = inverse.shape[0]

    def pair_that_turns(times: float) -> float:
        return pairs * math.log(spec.original_max_positions / (times * 2 * math.pi)) / math.log(spec.theta)

    low, high = pair_that_turns(spec.beta_fast), pair_that_turns(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    width = high - low if high != low else 0.001
    slowed = ((torch.arange(pairs, dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
    return inverse / spec.factor * slowed + inverse * (1.0 - slowed)


def _llama3(spec: RopeSpec, inverse: torch.Tensor) -> torch.Tensor:
    """Llama 3.1's scaling: long wavelengths are stretched by `factor`, short ones kept, those between blended.

    Source: the reference implementation, github.com/meta-llama/llama-models, models/llama3/model.py, apply_scaling.
    """
    wavelengths = 2 * math.pi / inverse
    turns = spec.original_max_positions / wavelengths
    blend = (turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)
    blend = blend.clamp(0.0, 1.0)
    return (1.0 - blend) * inverse / spec.factor + blend * inverse
