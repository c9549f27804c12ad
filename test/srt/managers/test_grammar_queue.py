"""Requests whose grammar compiles: they wait, others pass, and every grammar is let go as often as it was taken."""

from collections import Counter

import msgspec
import pytest

from sglang.srt.core.grammar import GrammarSpec, GrammarState
from sglang.srt.core.sampling import SamplingParams
from sglang.srt.messages.frontend import Abort, Generate
from support.sim import Answer, Sim, expected_tokens

PROMPT = [5, 6, 7, 8, 9]


class ScriptedGrammars:
    """Grammars that end when the test says so; a text that begins with "bad" is rejected."""

    def __init__(self) -> None:
        self.users: Counter[GrammarSpec] = Counter()
        self.done: set[GrammarSpec] = set()
        self.ended: list[GrammarSpec] = []

    def state(self, spec: GrammarSpec) -> GrammarState:
        if spec not in self.done:
            return GrammarState.PENDING
        return GrammarState.REJECTED if spec.text.startswith("bad") else GrammarState.READY

    def finish(self, text: str) -> None:
        self.done.add(spec(text))
        self.ended.append(spec(text))

    def acquire(self, spec: GrammarSpec) -> GrammarState:
        self.users[spec] += 1
        return self.state(spec)

    def release(self, spec: GrammarSpec) -> None:
        self.users[spec] -= 1
        assert self.users[spec] >= 0

    def reason(self, spec: GrammarSpec) -> str:
        assert self.users[spec] > 0, "asked after its release"
        return f"{spec.text} is wrong"

    def poll(self) -> list[tuple[GrammarSpec, GrammarState]]:
        ended, self.ended = self.ended, []
        return [(spec, self.state(spec)) for spec in ended]

    def counters(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


def spec(text: str) -> GrammarSpec:
    return GrammarSpec(kind="regex", text=text)


def ask(sim: Sim, engine: str, rid: str, text: str | None, count: int = 4, group: str = "") -> Answer:
    grammar = None if text is None else spec(text)
    sampling = SamplingParams(max_new_tokens=count, grammar=grammar)
    sim.engines[engine].to.append(Generate(rid=rid, token_ids=tuple(PROMPT), sampling=sampling, group=group))
    answer = sim.answers[rid] = Answer()
    return answer


def turns(sim: Sim, count: int = 300) -> None:
    for _ in range(count):
        sim.turn()


@pytest.fixture(params=["null", "decode"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def start(mode: str, **limits: object) -> tuple[Sim, ScriptedGrammars]:
    sim = Sim(7)
    if mode == "decode":
        sim.add("p", "prefill")
    made = sim.add("u", mode, peers=("p",) if mode == "decode" else (), **limits)
    made.scheduler.grammars = grammars = ScriptedGrammars()
    return sim, grammars


def test_who_waits_for_a_grammar_holds_up_nobody(engine: str) -> None:
    sim, grammars = start(engine)
    first = ask(sim, "u", "a", "slow")
    bad = [ask(sim, "u", f"b{i}", "bad", group="g") for i in range(2)]
    other = ask(sim, "u", "c", None)
    turns(sim)
    assert other.tokens == expected_tokens(PROMPT, 4) and other.finish == "length"
    assert not first.tokens and not first.over and not any(answer.over for answer in bad)
    grammars.finish("bad")
    turns(sim, 50)
    assert all(answer.refused and answer.refused.status == 400 for answer in bad)
    assert bad[0].refused is not None and bad[0].refused.message == "bad is wrong"
    grammars.finish("slow")
    sim.run()
    assert first.tokens == expected_tokens(PROMPT, 4)
    one = ask(sim, "u", "d", "slow", count=1)
    again = ask(sim, "u", "e", "bad")
    sim.run()
    assert one.tokens == expected_tokens(PROMPT, 1), "reported case A23"
    assert again.refused is not None
    assert not any(grammars.users.values())
    sim.check_empty()


def test_an_abort_while_the_grammar_compiles_releases_it(engine: str) -> None:
    sim, grammars = start(engine)
    answer = ask(sim, "u", "a", "slow")
    turns(sim, 30)
    sim.engines["u"].to.append(Abort(rid="a"))
    sim.run()
    assert answer.finish == "abort" and not any(grammars.users.values())
    grammars.finish("slow")
    turns(sim, 30)
    sim.check_empty()


def test_a_resumed_request_brings_its_outputs_for_the_matcher() -> None:
    sim, grammars = start("null", pages=14, conservativeness=0.01)
    grammars.done.add(spec("ready"))
    worker = sim.engines["u"].worker
    resumed: list[tuple[int, ...]] = []
    submit = worker.submit

    def spy(plan: object) -> None:
        resumed.extend(row.outputs for row in plan.opened if row.generated)  # type: ignore[attr-defined]
        submit(plan)  # type: ignore[arg-type]

    worker.submit = spy  # type: ignore[method-assign]
    answers = [ask(sim, "u", str(i), "ready", count=30) for i in range(8)]
    sim.run()
    expected = expected_tokens(PROMPT, 30)
    assert all(answer.tokens == expected for answer in answers)
    assert resumed and all(outputs == tuple(expected[: len(outputs)]) and outputs for outputs in resumed)
    assert not any(grammars.users.values())


def test_a_dead_end_refuses_one_request(engine: str) -> None:
    sim, grammars = start(engine)
    grammars.done.add(spec("ready"))
    worker = sim.engines["u"].worker
    poll = worker.poll

    def stuck() -> list[object]:
        results = poll()
        return [
            msgspec.structs.replace(
                result, sampled=tuple(msgspec.structs.replace(token, stuck=True) for token in result.sampled)
            )
            for result in results
        ]

    worker.poll = stuck  # type: ignore[method-assign,assignment]
    answer = ask(sim, "u", "a", "ready")
    sim.run()
    assert answer.refused is not None and "no token" in answer.refused.message
    worker.poll = poll  # type: ignore[method-assign]
    other = ask(sim, "u", "b", "ready")
    sim.run()
    assert other.tokens == expected_tokens(PROMPT, 4)
    sim.check_empty()


def test_an_engine_without_a_backend_says_so() -> None:
    sim = Sim(1)
    sim.add("u", "null")
    answer = ask(sim, "u", "a", "x")
    sim.run()
    assert answer.refused is not None and "--grammar-backend" in answer.refused.message
