"""Grammars in the sampler: masks, replay, ends and dead ends, among rows that have none."""

import pytest
import torch

from sglang.srt.constrained.base import Bits
from sglang.srt.core.grammar import GrammarSpec
from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.step import RowOpen, SampledToken
from sglang.srt.errors import EngineError
from sglang.srt.model_executor.grammar_rows import GrammarRows, NoMatchers
from sglang.srt.model_executor.sampler import Sampler
from sglang.srt.model_executor.sampling_state import SamplingState

VOCAB = 70
END = 2


class Words:
    """A grammar that is one list of tokens and then the end ("10 33"), or a dead end ("10 33-")."""

    def __init__(self, tokens: list[int], dead: bool) -> None:
        self.left = tokens
        self.dead = dead
        self.terminated = False

    def fill(self, bits: Bits) -> None:
        bits[:] = 0
        if not self.left and self.dead and not self.terminated:
            return
        token = self.left[0] if self.left else END
        bits.view("uint32")[token // 32] = 1 << token % 32

    def accept(self, token: int) -> bool:
        if self.terminated or (self.dead and not self.left):
            return False
        if token != (self.left[0] if self.left else END):
            return False
        self.terminated = not self.left
        self.left = self.left[1:]
        return True

    def rollback(self, count: int) -> None:
        raise NotImplementedError


class Source:
    def matcher(self, spec: GrammarSpec) -> Words:
        words = spec.text.removesuffix("-").split()
        return Words([int(word) for word in words], spec.text.endswith("-"))


def state_of(*rows: RowOpen) -> SamplingState:
    state = SamplingState(16, VOCAB, Source())
    for row in rows:
        state.open(row)
    return state


def row(slot: int, text: str | None, *, outputs: tuple[int, ...] = (), **params: object) -> RowOpen:
    grammar = None if text is None else GrammarSpec(kind="regex", text=text)
    sampling = SamplingParams(grammar=grammar, stop_token_ids=(END,), **{"temperature": 0.0, **params})
    return RowOpen(slot=slot, sampling=sampling, seed=1, outputs=outputs, generated=len(outputs))


def steps(state: SamplingState, slots: list[int], count: int, best: int = 50) -> list[list[int]]:
    """Tokens of `count` steps over logits whose best token is always `best`."""
    logits = torch.zeros(len(slots), VOCAB)
    logits[:, best] = 5.0
    names = torch.tensor(slots)
    found = []
    for step in range(count):
        found.append(Sampler(state).sample(logits, names, torch.full_like(names, step)).tokens.tolist())
    assert (logits[:, best] == 5.0).all(), "the model's logits are left alone"
    return [list(tokens) for tokens in zip(*found, strict=True)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_constrained_rows_follow_their_grammar_and_others_do_not_notice(temperature: float) -> None:
    rows = [row(3, None), row(5, "10 69 33", temperature=temperature), row(0, "31 32", temperature=temperature)]
    free, first, second = steps(state_of(*rows), [3, 5, 0], 5)
    assert first == [10, 69, 33, END, END] and second == [31, 32, END, END, END]
    assert free == steps(state_of(rows[0]), [3], 5)[0] == [50] * 5


def test_a_resumed_row_replays_what_it_had() -> None:
    resumed = row(1, "10 69 33", outputs=(10, 69))
    assert steps(state_of(resumed), [1], 2) == [[33, END]]


def test_a_slot_is_free_of_its_last_grammar() -> None:
    state = state_of(row(1, "10 11"))
    steps(state, [1], 1)
    state.close(1)
    state.open(row(1, "20"))
    assert steps(state, [1], 2) == [[20, END]]
    state.close(1)
    state.open(row(1, None))
    assert steps(state, [1], 1) == [[50]]


def test_a_grammar_behind_a_reasoning_begins_at_its_end() -> None:
    state = state_of(row(1, "10", grammar_after=(40, 41)))
    assert steps(state, [1], 2) == [[50, 50]]
    assert steps(state, [1], 1, best=40) == [[40]]
    assert steps(state, [1], 1, best=41) == [[41]]
    assert steps(state, [1], 2) == [[10, END]]
    resumed = row(2, "10", grammar_after=(40, 41), outputs=(50, 40, 41))
    assert steps(state_of(resumed), [2], 1) == [[10]]


def test_nothing_ends_before_its_grammar_began() -> None:
    state = state_of(row(1, "10", grammar_after=(40,)))
    assert steps(state, [1], 1, best=END)[0][0] not in (END, 10)
    assert steps(state, [1], 1, best=40) == [[40]] and steps(state, [1], 2, best=END) == [[10, END]]


def test_an_optional_reasoning_begins_with_its_token_or_not_at_all() -> None:
    options = {"grammar_after": (41,), "grammar_opening": 40}
    reasons = state_of(row(1, "10", **options))
    assert steps(reasons, [1], 1, best=40) == [[40]]
    assert steps(reasons, [1], 2) == [[50, 50]]
    assert steps(reasons, [1], 1, best=41) == [[41]]
    assert steps(reasons, [1], 2) == [[10, END]]
    assert steps(state_of(row(1, "10 11", **options)), [1], 3, best=41) == [[10, 11, END]]
    assert steps(state_of(row(1, "10 11", **options, outputs=(40, 41, 10))), [1], 2) == [[11, END]]
    assert steps(state_of(row(1, "10 11", **options, outputs=(10,))), [1], 2, best=40) == [[11, END]]


def test_a_complete_output_ends_before_min_new_tokens() -> None:
    assert steps(state_of(row(1, "10", min_new_tokens=9)), [1], 3) == [[10, END, END]]


def test_a_dead_end_is_reported_and_does_not_break_its_neighbours() -> None:
    state = state_of(row(1, "10-", temperature=1.0), row(2, "11 12"))
    sampled = tuple(SampledToken(slot=slot, token=0) for slot in (1, 2))
    steps(state, [1, 2], 1)
    assert state.grammars.marked(sampled) == sampled
    assert steps(state, [1, 2], 2)[1] == [12, END]
    assert [token.stuck for token in state.grammars.marked(sampled)] == [True, False]


def test_bias_cannot_force_what_the_grammar_forbids() -> None:
    assert steps(state_of(row(1, "10", logit_bias=((10, -100.0), (11, 100.0)))), [1], 1) == [[10]]


def test_a_worker_without_a_backend_refuses_loudly() -> None:
    rows = GrammarRows(NoMatchers(), VOCAB)
    with pytest.raises(EngineError, match="no grammar backend"):
        rows.open(row(1, "10"))
