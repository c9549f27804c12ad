"""Peers that die, freeze, leave and come back, as real processes: no request lost, no byte wrong, nothing left held.

One cluster of two prefill engines and one decode engine serves the whole file, in order; each test leaves it whole.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from support.storm import Storm, prompts, storm, tokens, wait_until

LOAD = prompts(14, 1, 300, 900)


def complaints(log: str) -> str:
    """Its warnings."""
    return "\n".join(line for line in log.splitlines() if " WARNING " in line or " ERROR " in line)


@pytest.fixture(scope="module", params=["tcp", pytest.param("shm", marks=pytest.mark.slow)])
def made(request: pytest.FixtureRequest, tiny: Path) -> Iterator[Storm]:
    # 2.5 s of silence: a machine that is busy with other work may not let an engine run for 1.5 s.
    flags = ("--disagg-heartbeat-s", "0.5", "--disagg-heartbeat-misses", "5", "--disable-radix-cache")
    with storm(tiny, request.param, flags=flags) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def expected(made: Storm) -> list[list[int]]:
    return made.answers(made.decode[0], LOAD)


@pytest.fixture
def whole(made: Storm, expected: list[list[int]]) -> Storm:
    """The cluster, mended where the test before failed half-way."""
    made.mend()
    return made


def test_a_prefill_engine_killed_under_load_costs_no_request_and_is_used_again(
    whole: Storm, expected: list[list[int]]
) -> None:
    """Peer lost; retry elsewhere; restart under the same address is a new incarnation (reported case A26)."""
    victim, decode = whole.prefill[0], whole.decode[0]
    asked = [whole.ask(decode, prompt, 8) for prompt in LOAD]
    whole.in_transfer(decode)
    victim.kill()
    assert tokens(asked) == expected
    assert wait_until(lambda: whole.usable(decode) == 1) < 5, "a lost peer is noticed within its heartbeats"
    victim.restart()
    wait_until(lambda: whole.usable(decode) == 2)
    assert whole.answers(decode, LOAD) == expected
    assert victim.live.metrics()["num_transfers_total"] > 0, "the new incarnation is used"
    whole.check_empty()


def test_a_prefill_engine_that_freezes_and_thaws_corrupts_nothing(whole: Storm, expected: list[list[int]]) -> None:
    """Late writes after the fence land nowhere: pages are reused while it sleeps, and compared when it has woken."""
    victim, decode = whole.prefill[0], whole.decode[0]
    asked = [whole.ask(decode, prompt, 8) for prompt in LOAD]
    whole.in_transfer(decode)
    victim.live.signal(signal.SIGSTOP)
    try:
        wait_until(lambda: whole.usable(decode) == 1)
        again = [whole.ask(decode, prompt, 20) for prompt in LOAD]
        assert tokens(asked) == expected
    finally:
        victim.live.signal(signal.SIGCONT)
    assert [answer[:8] for answer in tokens(again)] == expected
    wait_until(lambda: whole.usable(decode) == 2)
    assert whole.answers(decode, LOAD) == expected
    whole.check_empty()


def test_a_decode_engine_killed_under_load_leaves_nothing_on_its_prefill_engines(
    whole: Storm, expected: list[list[int]]
) -> None:
    decode = whole.decode[0]
    asked = [whole.ask(decode, prompt, 8) for prompt in LOAD]
    whole.in_transfer(decode)
    decode.kill()
    for future in asked:
        assert future.exception() is not None or future.result().status_code in (200, 503)
    wait_until(lambda: all(node.live.metrics()["num_decode_engines"] == 0 for node in whole.prefill))
    whole.check_empty()
    decode.restart()
    wait_until(lambda: whole.usable(decode) == 2)
    assert whole.answers(decode, LOAD) == expected


def test_a_prefill_engine_told_to_leave_finishes_its_transfers_and_no_request_fails(
    whole: Storm, expected: list[list[int]]
) -> None:
    """SIGTERM under load: new asks go elsewhere at once, what was accepted is finished."""
    victim, decode = whole.prefill[1], whole.decode[0]
    failed = decode.live.metrics()["num_transfer_failed_reqs_total"]
    asked = [whole.ask(decode, prompt, 8) for prompt in LOAD]
    whole.in_transfer(decode)
    victim.live.process.send_signal(signal.SIGTERM)
    assert tokens(asked) == expected
    assert victim.live.process.wait(20) == 0
    again = decode.live.metrics()["num_transfer_failed_reqs_total"] - failed
    assert again == 0, f"{again} transfers had to be tried again:\n{complaints(decode.live.log())}"
    victim.restart()
    wait_until(lambda: whole.usable(decode) == 2)
    whole.check_empty()


def test_a_decode_engine_told_to_leave_answers_what_it_has(whole: Storm, expected: list[list[int]]) -> None:
    decode = whole.decode[0]
    long = whole.ask(decode, LOAD[0], 1000)
    wait_until(lambda: long.done() or decode.live.metrics()["num_admitted_reqs"])
    asked = [whole.ask(decode, prompt, 8) for prompt in LOAD]
    whole.in_transfer(decode)
    decode.live.process.send_signal(signal.SIGTERM)
    for future, right in zip(asked, expected, strict=True):
        # What came too late is turned away at the door, where a balancer knows to try another engine.
        if isinstance(future.exception(), httpx.ConnectError) or future.result().status_code == 503:
            continue
        assert future.result().json()["output_ids"] == right
    assert tokens([long])[0][:8] == expected[0]
    assert decode.live.process.wait(20) == 0


@pytest.mark.slow
def test_a_lone_prefill_engine_is_restarted_under_load_and_no_request_fails(
    whole: Storm, expected: list[list[int]]
) -> None:
    """Its transfers are finished, and what is asked meanwhile waits in the decode engine's queue."""
    other, lone, decode = whole.prefill[0], whole.prefill[1], whole.decode[0]
    assert other.live.stop() == 0
    wait_until(lambda: whole.usable(decode) == 1)
    failed = decode.live.metrics()["num_transfer_failed_reqs_total"]
    asked = [whole.ask(decode, prompt, 8) for prompt in LOAD]
    whole.in_transfer(decode)
    lone.live.process.send_signal(signal.SIGTERM)
    late = [whole.ask(decode, prompt, 8) for prompt in LOAD]
    assert lone.live.process.wait(20) == 0
    lone.start()
    assert tokens(asked) == expected and tokens(late) == expected
    assert decode.live.metrics()["num_transfer_failed_reqs_total"] == failed, complaints(decode.live.log())
    other.restart()
    wait_until(lambda: whole.usable(decode) == 2)
    whole.check_empty()


@pytest.mark.slow
def test_a_decode_engine_told_to_leave_without_any_prefill_engine_refuses_at_once(whole: Storm) -> None:
    """As in a cluster that ends because its prefill engine died: clients hear it before the processes are killed."""
    decode = whole.decode[0]
    for node in whole.prefill:
        node.kill()
    asked = [whole.ask(decode, prompt, 8) for prompt in LOAD]
    wait_until(lambda: decode.live.metrics()["num_queue_reqs"] == len(LOAD))
    told_at = time.monotonic()
    decode.live.process.send_signal(signal.SIGTERM)
    for future in asked:
        answer = future.result()
        assert answer.status_code == 503 and answer.headers["Retry-After"], answer.text
        assert "shutting down" in answer.text
    assert time.monotonic() - told_at < 5
    assert decode.live.process.wait(10) == 0


def test_cancels_in_every_phase_bring_everything_back(whole: Storm, expected: list[list[int]]) -> None:
    """Reported case A22: clients that hang up in the queue, in the transfer and while decoding."""
    decode = whole.decode[0]
    body = {"sampling_params": {"temperature": 0, "max_new_tokens": 400, "ignore_eos": True}, "stream": True}

    def hang_up(index: int) -> None:
        try:
            url = f"{decode.live.url}/generate"
            httpx.post(url, json={**body, "input_ids": LOAD[index % len(LOAD)]}, timeout=0.05 + 0.02 * index)
        except httpx.HTTPError:
            return

    before = decode.live.metrics()["num_aborted_requests_total"]
    list(whole.pool.map(hang_up, range(30)))
    whole.check_empty()
    assert decode.live.metrics()["num_aborted_requests_total"] - before > 5
    assert whole.answers(decode, LOAD) == expected


def test_health_tells_the_truth(whole: Storm) -> None:
    """Reported case A27: healthy while every transfer waits for a frozen peer; unhealthy while the loop hangs."""
    decode = whole.decode[0]
    for node in whole.prefill:
        node.live.signal(signal.SIGSTOP)
    asked = [whole.ask(decode, prompt, 2) for prompt in LOAD]
    time.sleep(0.3)
    try:
        assert httpx.get(decode.live.url + "/health", timeout=5).status_code == 200
    finally:
        for node in whole.prefill:
            node.live.signal(signal.SIGCONT)
    for future in asked:
        assert future.result().status_code in (200, 503)
    (scheduler,) = decode.live.children()
    os.kill(scheduler, signal.SIGSTOP)
    try:
        assert wait_until(lambda: httpx.get(decode.live.url + "/health", timeout=10).status_code == 503) < 8
    finally:
        os.kill(scheduler, signal.SIGCONT)
    wait_until(lambda: httpx.get(decode.live.url + "/health", timeout=10).status_code == 200)
    wait_until(lambda: whole.usable(decode) == 2)
    whole.check_empty()
