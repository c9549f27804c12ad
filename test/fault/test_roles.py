"""Rules of the roles that need a precise moment: played in the simulated cluster, over real roles and schedulers."""

from collections import deque

import msgspec

from sglang.srt.disaggregation.roles.settings import RoleSettings
from sglang.srt.messages.frontend import Shutdown
from sglang.srt.messages.wire import AskQueued, AskRejected, Farewell, Heartbeat, Leaving, PrefillAsk
from support.sim import Sim, expected_tokens

PROMPT = list(range(1, 41))


def cluster(seed: int = 1, prefills: int = 1, **settings: object) -> Sim:
    sim = Sim(seed, settings=RoleSettings(local_tokens=0, **settings))  # type: ignore[arg-type]
    names = tuple(f"p{i}" for i in range(prefills))
    for name in names:
        sim.add(name, "prefill", pages=96)
    sim.add("d0", "decode", pages=96, peers=names)
    for _ in range(60):
        sim.turn()
    return sim


def sent(sim: Sim, to: str, sender: str) -> deque[object]:
    return sim.mail.setdefault((to, sender), deque())


def until(sim: Sim, true: object, turns: int = 5000) -> None:
    for _ in range(turns):
        if true():  # type: ignore[operator]
            return
        sim.turn()
    raise AssertionError("never true")


def test_a_second_ask_with_a_transfer_s_number_is_an_error_and_both_live_on() -> None:
    """Reported case A19: a copy is dropped, while the first is served and afterwards."""
    sim = cluster()
    sim.ask("d0", "0", PROMPT, 3)
    until(sim, lambda: any(isinstance(m, PrefillAsk) for m in sent(sim, "p0", "d0")))
    ask = next(m for m in sent(sim, "p0", "d0") if isinstance(m, PrefillAsk))
    sent(sim, "p0", "d0").append(ask)
    sim.run()
    assert sim.engines["p0"].scheduler.role.counters()["num_transfers_total"] == 1
    memory = bytes(sim.engines["d0"].worker.memory)
    sim.engines["d0"].paused = True
    sent(sim, "p0", "d0").append(ask)
    counters = sim.engines["p0"].scheduler.role.counters
    until(sim, lambda: counters()["control_frames_stale_total"] == 2)
    assert bytes(sim.engines["d0"].worker.memory) == memory, "a repeated ask wrote into pages of others"
    sim.engines["d0"].paused = False
    answer = sim.ask("d0", "1", PROMPT[::-1], 3)
    sim.run()
    assert answer.tokens == expected_tokens(PROMPT[::-1], 3)
    assert counters()["control_frames_stale_total"] == 2
    sim.check_empty()


def test_a_copy_that_comes_when_all_is_written_but_not_yet_seen_costs_nothing() -> None:
    """Its rejection used to reach the decode engine ahead of the last immediates, and ended the transfer."""
    sim = cluster()
    answer = sim.ask("d0", "0", PROMPT, 3)
    until(sim, lambda: any(isinstance(m, PrefillAsk) for m in sent(sim, "p0", "d0")))
    ask = next(m for m in sent(sim, "p0", "d0") if isinstance(m, PrefillAsk))
    sim.engines["d0"].paused = True
    role = sim.engines["p0"].scheduler.role
    until(sim, lambda: role.counters()["num_transfers_total"] == 1)
    until(sim, lambda: role.gauges()["num_prefill_inflight_queue_reqs"] == 0)
    sent(sim, "p0", "d0").append(ask)
    until(sim, lambda: role.counters()["control_frames_stale_total"] == 1)
    sim.engines["d0"].paused = False
    sim.run()
    assert answer.tokens == expected_tokens(PROMPT, 3)
    assert role.counters()["num_transfers_total"] == 1, "it was tried again"


def test_a_full_queue_is_waited_out_in_the_decode_engine_s_own_queue() -> None:
    """Backpressure: rejections with a hint cost no try, so that 30 requests pass through a queue of one."""
    sim = cluster(max_asks=1)
    prompts = [[i + 1] * 30 for i in range(30)]
    for i, prompt in enumerate(prompts):
        sim.ask("d0", str(i), prompt, 2)
    while not all(answer.over for answer in sim.answers.values()):
        sim.turn()
        assert sim.engines["p0"].scheduler.role.gauges()["num_prefill_inflight_queue_reqs"] <= 1
    for i, prompt in enumerate(prompts):
        assert sim.answers[str(i)].refused is None, sim.answers[str(i)].refused
        assert sim.answers[str(i)].tokens == expected_tokens(prompt, 2)


def test_an_engine_that_leaves_rejects_and_finishes() -> None:
    sim = cluster(wait_s=2.0)
    answer = sim.ask("d0", "0", PROMPT, 3)
    until(sim, lambda: any(isinstance(m, AskQueued) for m in sent(sim, "d0", "p0")))
    role = sim.engines["p0"].scheduler.role
    sim.engines["p0"].to.append(Shutdown(drain=True))
    sim.engines["d0"].paused = True
    until(sim, lambda: not sim.engines["p0"].to)
    sim.engines["d0"].paused = False
    later = sim.ask("d0", "1", PROMPT[::-1], 3)
    sim.run()
    assert answer.tokens == expected_tokens(PROMPT, 3), "what was accepted is finished"
    assert later.refused is not None and "leaving" in later.refused.message
    assert role.counters()["num_transfers_total"] == 1


def test_an_ask_that_crosses_the_leaving_message_is_rejected() -> None:
    sim = cluster(prefills=1)
    sim.engines["p0"].paused = True
    sim.ask("d0", "0", PROMPT, 3)
    until(sim, lambda: any(isinstance(m, PrefillAsk) for m in sent(sim, "p0", "d0")))
    sim.engines["d0"].paused = True
    sim.engines["p0"].to.append(Shutdown(drain=True))
    sim.engines["p0"].paused = False
    until(sim, lambda: any(isinstance(m, AskRejected) for m in sent(sim, "d0", "p0")))


def in_transit(sim: Sim, to: str, sender: str, kind: type) -> list[object]:
    """Messages of one kind, taken from the wire."""
    box = sent(sim, to, sender)
    taken = [message for message in box if isinstance(message, kind)]
    kept = [message for message in box if not isinstance(message, kind)]
    box.clear()
    box.extend(kept)
    return taken


def test_an_engine_leaves_when_no_ask_can_be_on_its_way_to_it() -> None:
    """Idle and told to leave, it is asked by one that has not heard of it: the ask is answered, and costs no try."""
    sim = cluster(prefills=2)
    sim.engines["p0"].to.append(Shutdown(drain=True))
    until(sim, lambda: any(isinstance(m, Leaving) for m in sent(sim, "d0", "p0")))
    news = in_transit(sim, "d0", "p0", Leaving)
    asked_at = sim.clock.now()
    answers = [sim.ask("d0", str(i), PROMPT[i:], 3) for i in range(4)]
    until(sim, lambda: all(answer.tokens for answer in answers))
    assert "p0" in sim.engines and sim.clock.now() - asked_at < 1, "nobody waited for an ask that nobody heard"
    sent(sim, "d0", "p0").extend(news)
    sim.run()
    until(sim, lambda: "p0" not in sim.engines)
    assert sim.engines["d0"].scheduler.role.counters()["num_transfer_failed_reqs_total"] == 0
    sim.check_empty()


def test_farewell_is_not_said_while_an_ask_is_open() -> None:
    sim = cluster()
    sim.engines["p0"].paused = True
    answer = sim.ask("d0", "0", PROMPT, 3)
    until(sim, lambda: any(isinstance(m, PrefillAsk) for m in sent(sim, "p0", "d0")))
    ask = next(m for m in sent(sim, "p0", "d0") if isinstance(m, PrefillAsk))
    sent(sim, "d0", "p0").append(Leaving(incarnation=ask.incarnation))
    for _ in range(40):
        sim.turn()
    assert not in_transit(sim, "p0", "d0", Farewell)
    sim.engines["p0"].paused = False
    until(sim, lambda: in_transit(sim, "p0", "d0", Farewell))
    sim.run()
    assert answer.tokens == expected_tokens(PROMPT, 3)


def test_a_lost_farewell_is_asked_for_again() -> None:
    sim = cluster(heartbeat_s=0.1)
    sim.engines["p0"].to.append(Shutdown(drain=True))
    until(sim, lambda: in_transit(sim, "p0", "d0", Farewell))
    left_at = sim.clock.now()
    until(sim, lambda: "p0" not in sim.engines)
    assert sim.clock.now() - left_at < 0.25


def test_an_engine_does_not_wait_for_ever_for_a_farewell() -> None:
    sim = cluster(heartbeat_s=0.1)
    sim.engines["p0"].to.append(Shutdown(drain=True))
    told_at = sim.clock.now()
    while "p0" in sim.engines:
        sim.turn()
        in_transit(sim, "p0", "d0", Farewell)
    assert 0.29 < sim.clock.now() - told_at < 0.5


def test_a_farewell_under_an_earlier_grant_lets_nobody_go() -> None:
    sim = cluster(heartbeat_s=0.1)
    sim.engines["p0"].to.append(Shutdown(drain=True))
    until(sim, lambda: any(isinstance(m, Farewell) for m in sent(sim, "p0", "d0")))
    (farewell,) = in_transit(sim, "p0", "d0", Farewell)
    assert isinstance(farewell, Farewell)
    sim.engines["d0"].paused = True
    sent(sim, "p0", "d0").append(Farewell(incarnation=farewell.incarnation, greeting=farewell.greeting - 1))
    sent(sim, "p0", "d0").append(Farewell(incarnation=farewell.incarnation + 1, greeting=farewell.greeting))
    for _ in range(40):
        sim.turn()
    assert "p0" in sim.engines
    sent(sim, "p0", "d0").append(farewell)
    until(sim, lambda: "p0" not in sim.engines, 40)


def test_engines_that_are_told_to_leave_together_do_not_wait_for_each_other() -> None:
    """A decode engine's last word is a farewell."""
    sim = cluster()
    for name in ("d0", "p0"):
        sim.engines[name].to.append(Shutdown(drain=True))
    told_at = sim.clock.now()
    while sim.engines:
        sim.turn()
    assert sim.clock.now() - told_at < 0.5


def test_a_prefill_engine_drops_what_a_lost_decode_engine_asked_for() -> None:
    """While it computes for it: nothing more is posted, and all comes back."""
    sim = cluster()
    for i in range(3):
        sim.ask("d0", str(i), PROMPT[i:], 3)
    prefill = sim.engines["p0"]
    until(sim, lambda: prefill.scheduler.role.gauges()["num_prefill_inflight_queue_reqs"] == 3)
    advance = prefill.worker.advance
    prefill.worker.advance = lambda: False  # type: ignore[method-assign]
    sim.kill("d0")
    sim.answers.clear()
    until(sim, lambda: not prefill.scheduler.role.gauges()["num_decode_engines"])
    prefill.worker.advance = advance  # type: ignore[method-assign]
    until(sim, lambda: not prefill.scheduler.role.gauges()["num_prefill_inflight_queue_reqs"])
    sim.run()
    sim.check_empty()
    assert prefill.scheduler.role.counters()["num_transfers_total"] == 0


def test_a_decode_engine_s_last_word_is_a_farewell() -> None:
    sim = cluster()
    sim.engines["p0"].paused = True
    sim.engines["d0"].to.append(Shutdown(drain=True))
    until(sim, lambda: "d0" not in sim.engines)
    assert in_transit(sim, "p0", "d0", Farewell)


def test_an_ask_for_a_page_that_does_not_exist_is_refused() -> None:
    sim = cluster()
    sim.engines["p0"].paused = True
    sim.ask("d0", "0", PROMPT, 3)
    until(sim, lambda: any(isinstance(m, PrefillAsk) for m in sent(sim, "p0", "d0")))
    (ask,) = in_transit(sim, "p0", "d0", PrefillAsk)
    assert isinstance(ask, PrefillAsk)
    sent(sim, "p0", "d0").append(msgspec.structs.replace(ask, pages=(96, *ask.pages[1:])))
    sim.engines["d0"].paused, sim.engines["p0"].paused = True, False
    until(sim, lambda: any(isinstance(m, AskRejected) for m in sent(sim, "d0", "p0")))
    (rejected,) = in_transit(sim, "d0", "p0", AskRejected)
    assert isinstance(rejected, AskRejected) and "a page outside 0..95" in rejected.reason


def test_heartbeats_of_another_incarnation_do_not_keep_a_peer_alive() -> None:
    sim = cluster(heartbeat_s=0.1)
    sim.engines["p0"].paused = True
    role = sim.engines["d0"].scheduler.role
    assert role.gauges()["num_usable_prefill_engines"] == 1
    for sequence in range(100):
        sent(sim, "d0", "p0").append(Heartbeat(incarnation=12345, sequence=sequence))
        sim.clock.advance(0.05)
        sim.turn()
    assert role.gauges()["num_usable_prefill_engines"] == 0


def test_an_engine_that_hung_up_is_lost_before_it_is_silent() -> None:
    """Its request goes to the other at once, not when heartbeats have been missed."""
    sim = cluster(prefills=2, heartbeat_s=100.0, ask_timeout_s=100.0)
    answers = [sim.ask("d0", str(i), PROMPT[i:], 3) for i in range(2)]
    until(sim, lambda: sim.engines["d0"].scheduler.role.gauges()["num_transfer_slots_used"] == 2)
    killed_at = sim.clock.now()
    sim.kill("p0")
    sim.hang_up("p0")
    sim.run()
    assert sim.clock.now() - killed_at < 5
    assert [answer.tokens for answer in answers] == [expected_tokens(PROMPT[i:], 3) for i in range(2)]


def test_a_decode_engine_told_to_end_waits_for_no_prefill_engine_that_is_not_there() -> None:
    """What runs is finished; what waits, or comes back from a lost transfer, is refused with a hint, and at once."""
    sim = cluster(wait_s=1000.0, heartbeat_s=1000.0)
    runs = sim.ask("d0", "0", PROMPT, 60)
    until(sim, lambda: runs.tokens)
    sim.kill("p0")
    sim.hang_up("p0")
    waits = sim.ask("d0", "1", PROMPT[::-1], 3)
    for _ in range(50):
        sim.turn()
    assert not waits.over and len(runs.tokens) < 60
    told_at = sim.clock.now()
    sim.engines["d0"].to.append(Shutdown(drain=True))
    until(sim, lambda: waits.over)
    assert waits.refused is not None and waits.refused.status == 503 and waits.refused.retry_after_s
    assert "shutting down" in waits.refused.message and sim.clock.now() - told_at < 1
    until(sim, lambda: "d0" not in sim.engines)
    assert runs.tokens == expected_tokens(PROMPT, 60)


def test_a_request_whose_only_peer_died_after_a_first_try_is_refused_in_time() -> None:
    sim = cluster(wait_s=2.0)
    answer = sim.ask("d0", "0", PROMPT, 3)
    until(sim, lambda: sim.engines["d0"].scheduler.role.gauges()["num_transfer_slots_used"])
    sim.kill("p0")
    started = sim.clock.now()
    sim.run(100_000)
    assert answer.refused is not None and answer.refused.status == 503 and "after 1 attempts" in answer.refused.message
    assert sim.clock.now() - started < 10
