"""Random numbers that are a function of (seed, position): no state, so no batch can change them.

The mixer is SplitMix64's finaliser (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
"""

import torch

GOLDEN = -7046029254386353131
"""0x9E3779B97F4A7C15 as a signed 64-bit integer."""
MIX_1 = -4658895280553007687
"""0xBF58476D1CE4E5B9."""
MIX_2 = -7723592293110705685
"""0x94D049BB133111EB."""


def uniform(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """One number in [0, 1) for each (seed, position): int64 `[n]` each -> float64 `[n]` with 53 random bits."""
    bits = _mix(_mix(seeds) + positions * GOLDEN)
    return _shift(bits, 11).to(torch.float64) * 2.0**-53


def _mix(value: torch.Tensor) -> torch.Tensor:
    value = value + GOLDEN
    value = (value ^ _shift(value, 30)) * MIX_1
    value = (value ^ _shift(value, 27)) * MIX_2
    return value ^ _shift(value, 31)


def _shift(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift right; torch's own is arithmetic."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
