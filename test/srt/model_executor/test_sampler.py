"""The sampler: each row as if it were alone."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.step import RowOpen
from sglang.srt.model_executor.sampler import Sampler
from sglang.srt.model_executor.sampling_state import SamplingState

VOCAB = 300


def state_of(rows: list[RowOpen]) -> SamplingState:
    """A state with these rows open."""
    state = SamplingState(16, VOCAB)
    for row in rows:
        state.open(row)
    return state


def draw(rows: list[RowOpen], logits: torch.Tensor, positions: list[int]) -> list[int]:
    """One sample a row."""
    slots = torch.tensor([row.slot for row in rows])
    return Sampler(state_of(rows)).sample(logits, slots, torch.tensor(positions)).tokens.tolist()


def one(
    logits: list[float] | torch.Tensor,
    *,
    position: int = 5,
    seed: int = 0,
    row: dict[str, object] | None = None,
    **params: object,
) -> int:
    """A single row's token."""
    extra = row or {}
    opened = RowOpen(slot=2, sampling=SamplingParams(**params), seed=seed, **extra)
    padded = torch.full((1, VOCAB), -50.0)
    padded[0, : len(logits)] = torch.as_tensor(logits)
    return draw([opened], padded, [position])[0]


params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 1, 5, 100]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    min_p=st.sampled_from([0.0, 0.05]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.sampled_from([(), ((3, 4.0), (250, -100.0))]),
    min_new_tokens=st.sampled_from([0, 4]),
    stop_token_ids=st.sampled_from([(), (1, 2)]),
    logprobs=st.booleans(),
)


@given(st.lists(params, min_size=2, max_size=8), st.integers(0, 2**62), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_a_row_does_not_depend_on_its_batch(
    settings_of_rows: list[SamplingParams], seed: int, rng: random.Random
) -> None:
    slots = rng.sample(range(16), len(settings_of_rows))
    rows = [
        RowOpen(slot=slot, sampling=p, seed=(seed + i) % 2**63, prompt=(5, 6, 7), outputs=(8, 8, 9), generated=3)
        for i, (slot, p) in enumerate(zip(slots, settings_of_rows, strict=True))
    ]
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed % 1000)) * 3
    positions = [rng.randrange(1000) for _ in rows]
    together = draw(rows, logits, positions)
    alone = [draw([row], logits[i : i + 1], positions[i : i + 1])[0] for i, row in enumerate(rows)]
    assert together == alone


def test_frequencies_follow_the_distribution() -> None:
    probs = torch.tensor([0.5, 0.25, 0.125, 0.125])
    rows = 20_000
    state = SamplingState(1, 4)
    state.open(RowOpen(slot=0, sampling=SamplingParams(), seed=11))
    logits = probs.log().expand(rows, 4)
    sampled = Sampler(state).sample(logits, torch.zeros(rows, dtype=torch.int64), torch.arange(rows))
    counts = torch.bincount(sampled.tokens, minlength=4)
    assert float(((counts - probs * rows) ** 2 / (probs * rows)).sum()) < 16.3  # 3 degrees of freedom, p = 0.001


def test_temperature_sharpens() -> None:
    draws = [one([1.0, 0.0], position=i, temperature=0.05) for i in range(100)]
    assert set(draws) == {0}


def test_an_impossible_token_is_never_drawn() -> None:
    logits = torch.full((VOCAB,), float("-inf"))
    logits[7] = 0.0
    logits[9] = 0.0
    assert {one(logits, position=i) for i in range(200)} == {7, 9}


def test_temperature_zero_and_top_k_one_are_greedy() -> None:
    logits = torch.randn(VOCAB).tolist()
    best = max(range(VOCAB), key=logits.__getitem__)
    assert one(logits, temperature=0.0) == one(logits, top_k=1, temperature=5.0) == best


def test_logit_bias_moves_the_greedy_token() -> None:
    assert one([1.0, 0.0, 0.5], temperature=0.0, logit_bias=((1, 2.0),)) == 1
    assert one([1.0, 0.0, 0.5], temperature=0.0, logit_bias=((0, -100.0),)) == 2


def test_stop_tokens_wait_for_min_new_tokens() -> None:
    sampling = SamplingParams(temperature=0.0, min_new_tokens=2, stop_token_ids=(0,))
    state = state_of([RowOpen(slot=1, sampling=sampling, seed=0)])
    logits = torch.full((1, VOCAB), -5.0)
    logits[0, 0], logits[0, 4] = 3.0, 1.0
    draws = [int(Sampler(state).sample(logits, torch.tensor([1]), torch.tensor([i])).tokens) for i in range(4)]
    assert draws == [4, 4, 0, 0]


def test_min_new_tokens_counts_what_was_generated_before() -> None:
    row = {"generated": 1}
    assert one([3.0, 1.0], row=row, temperature=0.0, min_new_tokens=1, stop_token_ids=(0,)) == 0
    assert one([3.0, 1.0], row=row, temperature=0.0, min_new_tokens=2, stop_token_ids=(0,)) == 1


def test_frequency_and_presence_penalties_see_outputs_only() -> None:
    outputs = {"prompt": (1,), "outputs": (0, 0)}
    assert one([2.0, 1.5], row=outputs, temperature=0.0, frequency_penalty=0.3) == 1
    assert one([2.0, 1.5], row=outputs, temperature=0.0, frequency_penalty=0.2) == 0
    assert one([2.0, 1.5], row=outputs, temperature=0.0, presence_penalty=0.6) == 1
    assert one([2.0, 1.5], row=outputs, temperature=0.0, presence_penalty=0.4) == 0


def test_repetition_penalty_sees_the_prompt_and_either_sign() -> None:
    assert one([2.0, 1.5], row={"prompt": (0,)}, temperature=0.0, repetition_penalty=1.5) == 1
    assert one([2.0, 1.5], row={"outputs": (0,)}, temperature=0.0, repetition_penalty=1.2) == 0
    assert one([-1.0, -1.2] + [-9.0] * 8, row={"prompt": (0,)}, temperature=0.0, repetition_penalty=1.5) == 1


def test_penalties_count_what_they_sampled() -> None:
    sampling = SamplingParams(temperature=0.0, frequency_penalty=0.4)
    state = state_of([RowOpen(slot=3, sampling=sampling, seed=0)])
    logits = torch.full((1, VOCAB), -9.0)
    logits[0, 0], logits[0, 1] = 1.0, 0.7
    draws = [int(Sampler(state).sample(logits, torch.tensor([3]), torch.tensor([i])).tokens) for i in range(5)]
    assert draws == [0, 1, 0, 1, 0]


def test_a_reopened_slot_remembers_nothing() -> None:
    state = state_of([RowOpen(slot=3, sampling=SamplingParams(frequency_penalty=2.0), seed=0, outputs=(0,) * 99)])
    state.close(3)
    state.open(RowOpen(slot=3, sampling=SamplingParams(temperature=0.0, frequency_penalty=0.1), seed=0))
    logits = torch.zeros(1, VOCAB)
    logits[0, 0] = 1.0
    assert int(Sampler(state).sample(logits, torch.tensor([3]), torch.tensor([0])).tokens) == 0


def test_logprobs_are_the_models_own() -> None:
    sampling = SamplingParams(temperature=0.2, top_k=2, logprobs=True, top_logprobs=3, logit_bias=((0, 3.0),))
    plain = RowOpen(slot=1, sampling=SamplingParams(), seed=4)
    state = state_of([RowOpen(slot=0, sampling=sampling, seed=3), plain])
    logits = torch.randn(2, VOCAB)
    sampled = Sampler(state).sample(logits, torch.tensor([0, 1]), torch.tensor([1, 1]))
    expected = logits.log_softmax(-1)
    assert sampled.logprobs is not None and sampled.top_logprobs is not None and sampled.top_tokens is not None
    assert sampled.logprobs[0] == expected[0, sampled.tokens[0]]
    assert torch.equal(sampled.top_tokens[0], expected[0].topk(3).indices)
    assert math.isclose(float(sampled.top_logprobs[0, 0]), float(expected[0].max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_left_alone(dtype: torch.dtype) -> None:
    logits = torch.randn(1, VOCAB).to(dtype)
    before = logits.clone()
    row = RowOpen(slot=0, seed=0, outputs=(1,), sampling=SamplingParams(logit_bias=((0, 3.0),), frequency_penalty=1.0))
    draw([row], logits, [0])
    assert torch.equal(before, logits)
