"""Drawing a token against a sort and sums written out, at every level that this machine can run."""

import math
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.kernels.cpu.ops import CpuKernels, DrawFilters, best_kernels, levels

every_level = pytest.mark.parametrize("level", levels())
PLACES = [i / 61 for i in range(61)] + [1 - 2**-53]
Row = tuple[list[float], int, float, float, float]


def kept_by_hand(logits: list[float], k: int, p: float, floor: float) -> set[int]:
    """The tokens that survive, ties with the last one included; temperature is applied already."""
    probs = torch.tensor(logits, dtype=torch.float64).softmax(0).tolist()
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    cut = order[:k] if k < len(logits) else order
    mass = sum(probs[i] for i in cut) if k < len(logits) else 1.0
    kept, total = [], 0.0
    for i in cut:
        if kept and p < 1 and total >= p * mass:
            break
        kept.append(i)
        total += probs[i]
    least = min(logits[i] for i in kept)
    lowest = max(logits) + math.log(floor) if floor > 0 else -math.inf
    return {i for i, value in enumerate(logits) if value >= least and value >= lowest}


def filters(*rows: tuple[float, int, float, float]) -> DrawFilters:
    """(temperature, k, p, min_p) of each row."""
    kinds = (torch.float32, torch.int64, torch.float32, torch.float32)
    return DrawFilters(*(torch.tensor(c, dtype=kind) for c, kind in zip(zip(*rows, strict=True), kinds, strict=True)))


def drawn(level: str, logits: torch.Tensor, one: tuple[float, int, float, float]) -> list[int]:
    """One row's token at each of PLACES."""
    many = logits.expand(len(PLACES), -1)
    found = CpuKernels(level).draw(many, filters(*[one] * len(PLACES)), torch.tensor(PLACES, dtype=torch.float64))
    return found.tolist()


def check(level: str, logits: torch.Tensor, temperature: float, k: int, p: float, floor: float) -> None:
    """Every place's token is the one whose share of the kept mass it falls into, up to float32's rounding."""
    scaled = (logits.double() / temperature).tolist()
    kept = kept_by_hand(scaled, k, p, floor)
    weights = [math.exp(v - max(scaled)) if i in kept else 0.0 for i, v in enumerate(scaled)]
    ends = list(accumulate(weights))
    for place, token in zip(PLACES, drawn(level, logits, (temperature, k, p, floor)), strict=True):
        assert token in kept
        target, before = place * ends[-1], ends[token] - weights[token]
        assert before - 1e-5 * ends[-1] <= target <= ends[token] + 1e-5 * ends[-1]


# Quarters, so that ties are many and no borderline hangs on rounding.
row = st.tuples(
    st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=1, max_size=40),
    st.integers(1, 45),
    st.sampled_from([1.0, 0.99, 0.837, 0.51, 0.104, 0.0001]),
    st.sampled_from([0.0, 0.001, 0.103, 0.97]),
    st.sampled_from([1.0, 0.5, 3.0]),
)


@every_level
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@given(row)
@settings(max_examples=80, deadline=None)
def test_equals_the_sort(level: str, dtype: torch.dtype, given_row: Row) -> None:
    values, k, p, floor, temperature = given_row
    check(level, torch.tensor(values, dtype=dtype), temperature, min(k, len(values)), p, floor)


@every_level
@pytest.mark.parametrize("size", [511, 512, 513, 1500])
@pytest.mark.parametrize(("k", "p"), [(10**6, 1.0), (10**6, 0.9), (700, 1.0), (300, 0.837), (1, 1.0)])
def test_rows_of_many_blocks(level: str, size: int, k: int, p: float) -> None:
    """Distinct, nearly equal logits: whoever is kept hangs on all of them."""
    logits = torch.linspace(0, 8, size)[torch.randperm(size, generator=torch.Generator().manual_seed(size))]
    check(level, logits, 1.0, min(k, size), p, 0.0)


@every_level
def test_rows_do_not_know_each_other(level: str) -> None:
    """Of one batch, on several threads, with filters of their own; a view of wider rows."""
    random = torch.Generator().manual_seed(1)
    wide = torch.randn(40, 3000, generator=random)
    x = wide[:, 100:2900]
    rows = [
        (0.0 if i % 7 == 0 else 0.7 + i / 40, [50, 2800][i % 2], [1.0, 0.9, 0.5][i % 3], 0.01 * (i % 5))
        for i in range(40)
    ]
    place = torch.rand(40, generator=random, dtype=torch.float64)
    together = CpuKernels(level).draw(x, filters(*rows), place).tolist()
    alone = [int(CpuKernels(level).draw(x[i : i + 1], filters(one), place[i : i + 1])[0]) for i, one in enumerate(rows)]
    assert together == alone
    assert all(together[i] == int(x[i].argmax()) for i in range(0, 40, 7)), "temperature 0"


@every_level
def test_what_is_no_number_is_not_drawn(level: str) -> None:
    nan, inf = float("nan"), float("inf")
    plain = (1.0, 4, 1.0, 0.0)
    assert set(drawn(level, torch.tensor([nan, 1.0, -inf, 1.0]), plain)) == {1, 3}
    assert set(drawn(level, torch.tensor([nan, 1.0, -inf, 1.0]), (1.0, 3, 0.9, 0.1))) == {1, 3}
    assert set(drawn(level, torch.tensor([0.0, inf, 3.0, inf]), plain)) == {1}
    assert set(drawn(level, torch.tensor([-inf, -inf, -inf, -inf]), plain)) == {0}
    assert set(drawn(level, torch.tensor([-200.0, 0.0, -3e38, 300.0]), plain)) == {3}, "weights below float32's least"


def test_what_does_not_fit_is_refused() -> None:
    x, one = torch.zeros(2, 8), (1.0, 8, 1.0, 0.0)
    right, place = filters(one, one), torch.zeros(2, dtype=torch.float64)
    for wrong in (filters(one), right._replace(top_k=right.top_k.int()), right._replace(top_p=right.top_p.double())):
        with pytest.raises(ValueError, match="in place of torch"):
            best_kernels().draw(x, wrong, place)
    with pytest.raises(ValueError, match=r"in place of torch\.float64"):
        best_kernels().draw(x, right, place.float())
    with pytest.raises(ValueError, match="does not fit"):
        best_kernels().draw(x.half(), right, place)
