"""The scheduler in a unified engine: tokens are exact whatever the batch, the pool and the chunking."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.step import StepPlan, StepResult
from sglang.srt.messages.frontend import Abort
from support.sim import VOCABULARY, Sim, expected_tokens


def prompts(seed: int, count: int, longest: int, shared: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    head = [rng.randrange(VOCABULARY) for _ in range(shared)]
    return [head + [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, longest))] for _ in range(count)]


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_mixed_load_gives_exact_tokens_and_all_pages_back(page_size: int, mixed: bool, depth: int) -> None:
    sim = Sim(1, page_size=page_size)
    sim.add("u", "null", pages=1024 // page_size, mixed=mixed, depth=depth)
    loads = prompts(2, 24, 60)
    answers = [sim.ask("u", str(i), prompt, 1 + i) for i, prompt in enumerate(loads)]
    sim.run()
    for i, (prompt, answer) in enumerate(zip(loads, answers, strict=True)):
        assert answer.tokens == expected_tokens(prompt, 1 + i) and answer.finish == "length"
    sim.check_empty()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), pages=st.integers(12, 40), policy=st.sampled_from(["fcfs", "lpm", "priority"]))
def test_a_pool_that_runs_dry_retracts_and_loses_nothing(seed: int, pages: int, policy: str) -> None:
    sim = Sim(seed)
    engine = sim.add("u", "null", pages=pages, policy=policy, conservativeness=0.01)
    room = pages * 4
    loads = prompts(seed, 12, room // 2)
    answers = [sim.ask("u", str(i), prompt, 20) for i, prompt in enumerate(loads)]
    sim.run()
    for prompt, answer in zip(loads, answers, strict=True):
        assert answer.tokens == expected_tokens(prompt, min(20, room - len(prompt)))
    assert engine.scheduler.tally.requests == 12
    sim.check_empty()


def test_retraction_really_happens_in_the_test_above() -> None:
    sim = Sim(3)
    engine = sim.add("u", "null", pages=14, conservativeness=0.01)
    for i, prompt in enumerate(prompts(3, 8, 10)):
        sim.ask("u", str(i), prompt, 30)
    sim.run()
    assert engine.scheduler.tally.retractions > 0


def test_a_second_request_with_the_same_prefix_reuses_its_pages() -> None:
    sim = Sim(4)
    sim.add("u", "null")
    head = prompts(4, 1, 1, shared=32)[0]
    first = sim.ask("u", "a", [*head, 1], 4)
    sim.run()
    second = sim.ask("u", "b", [*head, 2], 4)
    sim.run()
    assert first.cached == 0 and second.cached == 32
    assert second.tokens == expected_tokens([*head, 2], 4)


def test_a_group_computes_its_prompt_once() -> None:
    sim = Sim(5)
    engine = sim.add("u", "null")
    prompt = prompts(5, 1, 2, shared=40)[0]
    answers = [sim.ask("u", str(i), prompt, 5, group="g") for i in range(4)]
    sim.run()
    assert all(answer.tokens == expected_tokens(prompt, 5) for answer in answers)
    tail = len(prompt) - (len(prompt) - 1) // 4 * 4
    assert engine.scheduler.tally.prompt_tokens <= len(prompt) + 3 * tail


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_random_aborts_leave_nothing_behind(seed: int) -> None:
    sim = Sim(seed)
    engine = sim.add("u", "null", pages=40)
    loads = prompts(seed, 12, 40)
    answers = [sim.ask("u", str(i), prompt, 30) for i, prompt in enumerate(loads)]
    for _ in range(sim.random.randint(0, 120)):
        sim.turn()
    for i in range(0, 12, 2):
        engine.to.append(Abort(rid=str(i)))
    sim.run()
    for i, (prompt, answer) in enumerate(zip(loads, answers, strict=True)):
        full = expected_tokens(prompt, 30)
        assert answer.tokens == full[: len(answer.tokens)]
        assert answer.finish == "length" if i % 2 else answer.finish in ("length", "abort")
    sim.check_empty()


def test_impossible_requests_are_refused_and_the_next_one_is_served() -> None:
    sim = Sim(6)
    sim.add("u", "null", pages=8, max_queued=2)
    refused = [sim.ask("u", "empty", [], 1), sim.ask("u", "long", [1] * 40, 1), sim.ask("u", "none", [1], 0)]
    good = sim.ask("u", "good", [1, 2, 3], 3)
    sim.run()
    assert [answer.refused.status for answer in refused if answer.refused] == [400, 400, 400]
    assert good.tokens == expected_tokens([1, 2, 3], 3)


def test_a_full_queue_answers_503_with_a_hint() -> None:
    sim = Sim(7)
    sim.add("u", "null", pages=8, max_queued=2, max_running=1)
    answers = [sim.ask("u", str(i), [i + 1] * 4, 4) for i in range(6)]
    sim.run()
    refused = [answer.refused for answer in answers if answer.refused]
    assert refused and all(r.status == 503 and r.retry_after_s for r in refused)


@pytest.mark.parametrize(
    ("stop_at", "cap", "kept", "reason"),
    [(2, 5, 3, "stop"), (4, 5, 5, "stop"), (5, 5, 5, "length"), (None, 2, 2, "length")],
)
def test_several_tokens_of_one_step_end_at_the_first_stop(
    monkeypatch: pytest.MonkeyPatch, stop_at: int | None, cap: int, kept: int, reason: str
) -> None:
    """Reported case A16: six tokens arrive at once, a stop is the third, the cap is 5."""
    sim = Sim(6)
    engine = sim.add("u", "null")
    prompt = prompts(6, 1, 9)[0]
    six = expected_tokens(prompt, 6)
    assert len(set(six)) == 6
    polled = engine.worker.poll

    def poll() -> list[StepResult]:
        return [
            msgspec.structs.replace(
                result,
                sampled=tuple(msgspec.structs.replace(one, token=token) for one in result.sampled for token in six),
            )
            for result in polled()
        ]

    monkeypatch.setattr(engine.worker, "poll", poll)
    stops = () if stop_at is None else (six[stop_at],)
    sampling = SamplingParams(max_new_tokens=cap, stop_token_ids=stops)
    answer = sim.ask("u", "r", prompt, cap)
    engine.to[-1] = msgspec.structs.replace(engine.to[-1], sampling=sampling)
    sim.run()
    assert answer.tokens == six[:kept] and answer.finish == reason
    assert engine.scheduler.tally.generated_tokens == kept
    sim.check_empty()


@pytest.mark.parametrize("mixed", [False, True])
def test_mixed_chunks_let_running_requests_go_on_beside_a_long_prompt(mixed: bool) -> None:
    """--enable-mixed-chunk: chunks and decode rows share steps; without it they never do."""
    sim = Sim(7)
    engine = sim.add("u", "null", pages=200, mixed=mixed)
    plans: list[StepPlan] = []
    submit = engine.worker.submit
    engine.worker.submit = lambda plan: (plans.append(plan), submit(plan))[1]  # type: ignore[method-assign]
    short = sim.ask("u", "short", [1, 2, 3], 60)
    while len(short.tokens) < 4:
        sim.turn()
    sim.ask("u", "long", prompts(7, 1, 1, shared=160)[0], 2)
    sim.run()
    kinds = [{"chunk" if row.length > 1 else "decode" for row in plan.rows} for plan in plans]
    assert any(kind == {"chunk", "decode"} for kind in kinds) is mixed
    assert short.tokens == expected_tokens([1, 2, 3], 60)


def test_a_conservative_schedule_retracts_less() -> None:
    """--schedule-conservativeness: how much of their longest output requests are expected to need."""

    def retractions(conservativeness: float) -> int:
        sim = Sim(3)
        engine = sim.add("u", "null", pages=14, conservativeness=conservativeness)
        for i, prompt in enumerate(prompts(3, 8, 10)):
            sim.ask("u", str(i), prompt, 30)
        sim.run()
        return engine.scheduler.tally.retractions

    assert retractions(1.0) == 0 < retractions(0.01)
