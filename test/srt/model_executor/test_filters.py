"""top-k, top-p, min-p against a sort written out."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.model_executor.filters import keep_likely


def kept_by_hand(logits: list[float], k: int, p: float, floor: float) -> set[int]:
    """The tokens that survive, ties with the last one included."""
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


row = st.tuples(
    st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=12, max_size=12),
    st.integers(1, 12),
    st.sampled_from([1.0, 0.99, 0.837, 0.51, 0.104, 0.0001]),
    st.sampled_from([0.0, 0.001, 0.103, 0.97]),
)


@given(st.lists(row, min_size=1, max_size=4))
@settings(max_examples=300)
def test_equals_the_sort(rows: list[tuple[list[float], int, float, float]]) -> None:
    logits = torch.tensor([r[0] for r in rows], dtype=torch.float32)
    kept = keep_likely(
        logits,
        torch.tensor([r[1] for r in rows]),
        torch.tensor([r[2] for r in rows]),
        torch.tensor([r[3] for r in rows]),
    )
    for index, (values, k, p, floor) in enumerate(rows):
        found = set(kept[index].isfinite().nonzero().flatten().tolist())
        assert found == kept_by_hand(values, k, p, floor)


@pytest.mark.parametrize("p", [0.5, 0.9, 0.99999])
def test_a_flat_distribution_needs_more_candidates(p: float) -> None:
    """20,000 distinct, nearly equal logits: far more than the first look takes in."""
    logits = torch.linspace(0, 0.1, 20_000)[torch.randperm(20_000)].unsqueeze(0)
    kept = keep_likely(logits, torch.tensor([20_000]), torch.tensor([p]), torch.tensor([0.0]))
    mass = logits.softmax(-1)[kept.isfinite()]
    assert p <= float(mass.sum()) + 1e-5 and float(mass.sum() - mass.min()) <= p + 1e-5


def test_nothing_to_filter_copies_nothing() -> None:
    logits = torch.randn(2, 50)
    kept = keep_likely(logits, torch.tensor([50, 50]), torch.tensor([1.0, 1.0]), torch.tensor([0.0, 0.0]))
    assert kept is logits
