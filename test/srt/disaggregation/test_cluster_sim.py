"""Whole request lives over a simulated cluster, with seeded interleavings and faults.

A token is a hash of every KV byte of its row, so "tokens equal expected_tokens" says that every page of every layer
arrived intact, before it was read, and was not overwritten while in use.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.disaggregation.messenger.loopback import Faults
from sglang.srt.disaggregation.roles.settings import RoleSettings
from sglang.srt.messages.frontend import Abort, Shutdown
from support.sim import VOCABULARY, Sim, expected_tokens

SEEDS = st.integers(0, 1 << 30)


def cluster(
    seed: int, *, decodes: int = 2, prefills: int = 1, pages: int = 96, page_size: int = 4, **more: object
) -> Sim:
    sim = Sim(seed, page_size=page_size, **more)
    names = tuple(f"p{i}" for i in range(prefills))
    for name in names:
        sim.add(name, "prefill", pages=pages)
    for i in range(decodes):
        sim.add(f"d{i}", "decode", pages=pages, peers=names)
    return sim


def load(sim: Sim, seed: int, count: int, longest: int = 60, tokens: int = 12) -> list[tuple[list[int], int]]:
    rng = random.Random(seed)
    loads = []
    for i in range(count):
        prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, longest))]
        wanted = rng.randint(1, tokens)
        decodes = [name for name in sim.engines if name.startswith("d")]
        sim.ask(decodes[i % len(decodes)], str(i), prompt, wanted)
        loads.append((prompt, wanted))
    return loads


def turns(sim: Sim, count: int) -> None:
    for _ in range(count):
        sim.turn()


def settle(sim: Sim, loads: list[tuple[list[int], int]]) -> None:
    """Every request ends, with the right tokens, and everything comes back."""
    sim.run(60_000)
    check(sim, loads)
    sim.check_empty()


def check(sim: Sim, loads: list[tuple[list[int], int]]) -> None:
    for i, (prompt, wanted) in enumerate(loads):
        answer = sim.answers[str(i)]
        assert answer.refused is None, answer.refused
        assert answer.tokens == expected_tokens(prompt, wanted), i
        assert answer.finish == "length"


@pytest.mark.parametrize("page_size", [1, 4, 16])
@settings(max_examples=12, deadline=None)
@given(seed=SEEDS)
def test_disaggregated_tokens_are_exact_in_any_interleaving(page_size: int, seed: int) -> None:
    sim = cluster(seed, page_size=page_size, pages=384 // page_size, faults=Faults(reorder=0.5, delay=0.3))
    loads = load(sim, seed, 12)
    sim.run()
    check(sim, loads)
    sim.check_empty()


@pytest.mark.parametrize("length", [1, 2, 4, 5, 16, 17, 20, 21, 32, 33, 48])
def test_lengths_around_page_and_chunk_boundaries(length: int) -> None:
    """Reported case A24: pages of 4, chunks of 16; one token; whole pages; one more; on and off a chunk's end."""
    sim = cluster(length, decodes=1)
    prompt = list(range(1, length + 1))
    sim.ask("d0", "0", prompt, 6)
    sim.run()
    check(sim, [(prompt, 6)])
    sim.check_empty()


def test_one_token_wanted_is_one_token_sent() -> None:
    """Reported case A23."""
    sim = cluster(1, decodes=1)
    sim.ask("d0", "0", [5] * 30, 1)
    sim.run()
    check(sim, [([5] * 30, 1)])


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_aborts_at_any_moment_bring_everything_back(seed: int) -> None:
    """Reported case A22: in the queue, mid-transfer, decoding."""
    sim = cluster(seed, pages=40, faults=Faults(reorder=0.3, delay=0.5))
    loads = load(sim, seed, 12)
    for i in sim.random.sample(range(12), 8):
        for _ in range(sim.random.randint(0, 40)):
            sim.turn()
        sim.engines[f"d{i % 2}"].to.append(Abort(rid=str(i)))
    sim.run()
    for i, (prompt, wanted) in enumerate(loads):
        answer = sim.answers[str(i)]
        assert answer.tokens == expected_tokens(prompt, wanted)[: len(answer.tokens)]
        assert answer.finish in ("abort", "length")
    sim.check_empty()


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_failing_writes_are_retried_without_a_wrong_token(seed: int) -> None:
    sim = cluster(
        seed, faults=Faults(fail=0.01, reorder=0.3), settings=RoleSettings(local_tokens=0, fallback_local=True)
    )
    loads = load(sim, seed, 10)
    settle(sim, loads)


@settings(max_examples=12, deadline=None)
@given(seed=SEEDS)
def test_bytes_of_failed_writes_that_land_late_miss_the_pages_next_owner(seed: int) -> None:
    """A pool so small that pages are reused at once: what a failed program left on its way must be fenced first."""
    sim = cluster(
        seed, decodes=1, pages=24, faults=Faults(fail=0.05), settings=RoleSettings(local_tokens=0, fallback_local=True)
    )
    loads = load(sim, seed, 16, longest=50)
    settle(sim, loads)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_a_tiny_pool_on_both_sides_retracts_and_stays_exact(seed: int) -> None:
    sim = cluster(seed, pages=20, faults=Faults(delay=0.2))
    loads = load(sim, seed, 12, longest=50, tokens=20)
    settle(sim, loads)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, patience=st.integers(0, 300))
def test_a_killed_prefill_engine_costs_no_request(seed: int, patience: int) -> None:
    sim = cluster(seed, prefills=2, faults=Faults(delay=0.3))
    loads = load(sim, seed, 12)
    turns(sim, patience)
    sim.kill("p0")
    settle(sim, loads)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, patience=st.integers(0, 300))
def test_a_prefill_engine_that_freezes_and_thaws_writes_nothing_into_reused_pages(seed: int, patience: int) -> None:
    sim = cluster(seed, prefills=2, pages=40, faults=Faults(delay=0.3))
    loads = load(sim, seed, 12)
    turns(sim, patience)
    sim.engines["p0"].paused = True
    for _ in range(500):
        sim.turn()
        sim.clock.advance(0.02)
    sim.engines["p0"].paused = False
    settle(sim, loads)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, patience=st.integers(0, 300))
def test_a_prefill_engine_taken_for_dead_costs_no_request_and_is_used_again(seed: int, patience: int) -> None:
    """Its connections ended and the next dial failed, and yet it lives and goes on writing."""
    sim = cluster(seed, prefills=2, pages=40, faults=Faults(delay=0.3))
    loads = load(sim, seed, 12)
    turns(sim, patience)
    sim.hang_up("p0")
    settle(sim, loads)
    sim.clock.advance(1.0)
    turns(sim, 100)
    usable = [sim.engines[name].scheduler.role.gauges()["num_usable_prefill_engines"] for name in ("d0", "d1")]
    assert usable == [2, 2]


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, patience=st.integers(0, 300))
def test_a_killed_decode_engine_leaves_nothing_on_the_prefill_engine(seed: int, patience: int) -> None:
    sim = cluster(seed, faults=Faults(delay=0.3))
    load(sim, seed, 12)
    turns(sim, patience)
    sim.kill("d0")
    for rid in list(sim.answers):
        if int(rid) % 2 == 0:
            del sim.answers[rid]
    for _ in range(400):
        sim.turn()
        sim.clock.advance(0.01)
    sim.run()
    sim.check_empty()


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, patience=st.integers(0, 200))
def test_a_prefill_engine_restarted_under_its_name_is_used_again(seed: int, patience: int) -> None:
    """Reported case A26."""
    sim = cluster(seed)
    loads = load(sim, seed, 10)
    turns(sim, patience)
    sim.kill("p0")
    sim.restart("p0", mode="prefill", pages=96)
    sim.run(60_000)
    check(sim, loads)
    assert sim.engines["p0"].scheduler.role.counters()["num_transfers_total"] > 0 or patience > 100
    sim.check_empty()


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS, patience=st.integers(0, 200), prefills=st.integers(1, 2), delay=st.sampled_from((0.0, 0.5, 0.95)))
def test_a_rolling_restart_of_prefill_engines_fails_no_transfer(
    seed: int, patience: int, prefills: int, delay: float
) -> None:
    """However long messages are on their way: no ask meets an engine that has ended, no transfer is tried again."""
    sim = cluster(seed, prefills=prefills, faults=Faults(delay=0.3), mail_delay=delay)
    loads = load(sim, seed, 16)
    for i in range(prefills):
        turns(sim, patience)
        sim.engines[f"p{i}"].to.append(Shutdown(drain=True))
        while f"p{i}" in sim.engines:
            sim.turn()
        sim.restart(f"p{i}", mode="prefill", pages=96)
    sim.run(60_000)
    check(sim, loads)
    for name in ("d0", "d1"):
        assert sim.engines[name].scheduler.role.counters()["num_transfer_failed_reqs_total"] == 0
    sim.check_empty()


def test_a_group_transfers_its_prompt_once() -> None:
    """Reported case A21: n > 1."""
    sim = cluster(8, decodes=1)
    prompt = list(range(50))
    for i in range(4):
        sim.ask("d0", str(i), prompt, 5, group="g")
    sim.run()
    check(sim, [(prompt, 5)] * 4)
    assert sim.engines["d0"].scheduler.role.counters()["num_transfers_total"] == 1


def test_prefix_hits_on_both_sides_are_skipped_or_sent_early() -> None:
    """Reported case A28, and walk 4 steps 1 and 3."""
    sim = cluster(9, decodes=2)
    head = list(range(40))
    sim.ask("d0", "0", [*head, 1], 3)
    sim.run()
    before = sim.engines["p0"].scheduler.role.counters()["kv_transfer_bytes_total"]
    same_decoder = sim.ask("d0", "1", [*head, 2, 3, 4, 5, 6], 3)
    sim.run()
    after = sim.engines["p0"].scheduler.role.counters()["kv_transfer_bytes_total"]
    page = sim.layout(1).kv.head_bytes * 3
    assert (after - before) == page, "only the one page that the decode engine lacked"
    assert same_decoder.cached == 40
    other_decoder = sim.ask("d1", "2", [*head, 7, 8, 9], 3)
    sim.run()
    assert other_decoder.cached == 40, "computed once on the prefill engine, reused for the other decode engine"
    check(sim, [([*head, 1], 3), ([*head, 2, 3, 4, 5, 6], 3), ([*head, 7, 8, 9], 3)])


def test_without_any_prefill_engine_a_request_is_refused_in_time() -> None:
    sim = Sim(10, settings=RoleSettings(local_tokens=0, wait_s=2.0))
    sim.add("d0", "decode", peers=("p0",))
    sim.cut.add("p0")
    answer = sim.ask("d0", "0", [1] * 30, 3)
    short = sim.ask("d0", "1", [1], 3)
    started = sim.clock.now()
    sim.run()
    assert (
        answer.refused is not None and answer.refused.status == 503 and "p0 does not answer" in answer.refused.message
    )
    assert sim.clock.now() - started < 4 and short.finish == "length"


def test_engines_with_different_page_sizes_name_the_difference() -> None:
    sim = Sim(11)
    sim.add("d0", "decode", peers=("p0",))
    sim.page_size = 8
    sim.add("p0", "prefill")
    answer = sim.ask("d0", "0", [1] * 30, 3)
    sim.run()
    assert answer.refused is not None and "it says: page_size: 8 here, 4 there" in answer.refused.message


def test_late_writes_after_a_fence_are_not_counted_for_the_next_owner() -> None:
    sim = cluster(12, prefills=1, decodes=1)
    sim.ask("d0", "0", [1] * 40, 3)
    while not sim.network.flying:
        sim.turn()
    held = list(sim.network.flying)
    sim.network.flying.clear()
    sim.engines["p0"].paused = True
    decode = sim.engines["d0"]
    for _ in range(600):
        sim.turn()
        sim.clock.advance(0.01)
    assert decode.scheduler.role.gauges()["num_transfer_slots_used"] == 0
    memory = bytes(decode.worker.memory)
    sim.network.flying += held
    sim.network.pump()
    assert bytes(decode.worker.memory) == memory
