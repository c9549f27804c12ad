"""Counter-based random numbers."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang.srt.model_executor.random import uniform

MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """SplitMix64 in Python's unbounded integers."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def test_the_mixer_is_splitmix64() -> None:
    """The first outputs for state 0 and 1 as other implementations print them."""
    assert mix(0) == 0xE220A8397B1DCDAF
    assert mix(1) == 0x910A2DEC89025CC1


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40))
def test_equals_the_scalar_definition(seed: int, position: int) -> None:
    bits = mix((mix(seed) + position * 0x9E3779B97F4A7C15) & MASK)
    found = uniform(torch.tensor([seed]), torch.tensor([position]))
    assert found.item() == (bits >> 11) * 2.0**-53


def test_uniform_over_positions_and_over_seeds() -> None:
    many, zeros = torch.arange(200_000), torch.zeros(200_000, dtype=torch.int64)
    for numbers in (uniform(zeros, many), uniform(many, zeros)):
        assert float(numbers.min()) >= 0 and float(numbers.max()) < 1
        counts = torch.histc(numbers.float(), 100, 0.0, 1.0)
        chi_square = float(((counts - 2000) ** 2 / 2000).sum())
        assert 50 < chi_square < 160  # 99 degrees of freedom
        neighbours = torch.corrcoef(torch.stack([numbers[1:], numbers[:-1]]))
        assert abs(float(neighbours[0, 1])) < 0.01
