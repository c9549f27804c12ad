"""Two real processes: bytes, and what happens when one of them dies, stops or is fenced."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fabric_child import BIG, SHAPE, order
from fabric_kit import Side, expected, lane, noise, poisoned, program, register

from pyfabric import Engine, MemoryRegion, PeerLost, PeerReady, ProgramDone, ProgramDrained, ProgramFailed, RemoteRegion


class Child:
    """A fabric_child process; whatever a test does to it, it is gone afterwards."""

    def __init__(self, role: str, provider: str, *options: str) -> None:
        script = Path(__file__).with_name("fabric_child.py")
        command = [sys.executable, str(script), role, provider, *options]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the child ended"
        message: dict[str, Any] = json.loads(line)
        return message

    def say(self, **fields: Any) -> None:  # noqa: ANN401
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(fields) + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Returns when it has stopped, where it is to: one thread takes the signal, and others run until it does."""
        os.kill(self.process.pid, number)
        end = time.monotonic() + 20
        while number == signal.SIGSTOP and self._runs():
            assert time.monotonic() < end, "it does not stop"
            time.sleep(0.001)

    def _runs(self) -> bool:
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return any((task / "stat").read_text().rsplit(")", 1)[1].split()[0] != "T" for task in tasks)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def receiver(provider: str) -> Iterator[Child]:
    child = Child("receiver", provider)
    yield child
    child.end()


@pytest.fixture
def sender(provider: str) -> Iterator[Child]:
    child = Child("sender", provider)
    yield child
    child.end()


@pytest.fixture
def engine(provider: str) -> Iterator[Engine]:
    with Engine(provider=provider, post_deadline_s=1.5) as opened:
        opened.start()
        yield opened


@pytest.fixture
def patient(provider: str) -> Iterator[Engine]:
    """For a test in which no write is to fail, however long a busy machine does not let the other process run."""
    with Engine(provider=provider, post_deadline_s=20.0) as opened:
        opened.start()
        yield opened


def connect(engine: Engine, receiver: Child) -> tuple[Side, int, RemoteRegion]:
    hello = receiver.hear()
    side = Side(engine)
    peer = engine.connect(bytes.fromhex(hello["address"]))
    engine.warm(peer)
    side.wait(PeerReady)
    return side, peer, RemoteRegion(hello["base"], hello["key"], hello["nbytes"])


def offer(engine: Engine, sender: Child, *, known: str = "") -> tuple[np.ndarray, MemoryRegion]:
    """A pool that the child sends into; returns once pages land. `known`: when the grant is told who it is for."""
    pool = poisoned(max(SHAPE.total, BIG.total))
    region = register(engine, pool)
    address = bytes.fromhex(sender.hear()["address"])
    grant = region.grant("child", address if known == "at once" else b"")
    if known == "later":
        assert region.grant("child", address) == grant
    before = engine.stats().immediates
    sender.say(address=engine.address.hex(), base=grant.base, key=grant.key, nbytes=grant.nbytes)
    assert sender.hear() == {"sending": True}
    while engine.stats().immediates < before + 40:
        time.sleep(0.001)
    return pool, region


def test_bytes_are_exact_between_processes(patient: Engine, receiver: Child) -> None:
    engine = patient
    side, peer, remote = connect(engine, receiver)
    data = noise(SHAPE.total)
    region, counter = register(engine, data), engine.counter()
    take, put = order(), order()[::-1]
    engine.arm(program(counter, SHAPE, 0, lane(SHAPE, region, peer, remote, take, put)))
    for _ in range(SHAPE.layers):
        counter.add()
        time.sleep(0.002)
    side.wait(ProgramDone)
    assert receiver.hear()["digest"] == hashlib.sha256(expected(SHAPE, data, take, put)).hexdigest()
    region.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_receiver_that_dies_or_stops_fails_the_program(engine: Engine, receiver: Child, number: int) -> None:
    side, peer, remote = connect(engine, receiver)
    data = noise(SHAPE.total)
    region, counter = register(engine, data), engine.counter()
    counter.add(SHAPE.layers)
    whole = program(counter, SHAPE, 1, lane(SHAPE, region, peer, remote, order(), order()))
    handles = [engine.arm(whole) for _ in range(200)]
    while engine.stats().completions < 100:
        time.sleep(0.001)
    receiver.signal(number)
    struck = time.monotonic()
    limit = struck + 1.5 + 1.0 + 1.5  # the deadline, a second for cut connections to report back, a busy machine
    ended: list[ProgramDone | ProgramFailed] = []
    while len(ended) < len(handles):
        side.settle(0.01)
        ended = [event for event in side.seen if isinstance(event, ProgramDone | ProgramFailed)]
        assert time.monotonic() < limit, f"{len(ended)} of {len(handles)} ended, {engine.stats()}"
    assert sorted(event.handle for event in ended) == handles
    assert isinstance(ended[-1], ProgramFailed)
    assert engine.stats().in_flight == 0
    region.close()
    # A killed peer of a socket provider is found by a probe after its writes failed, 3 s or the deadline later.
    assert side.wait(PeerLost, seconds=3.0) == [event for event in side.seen if isinstance(event, PeerLost)]
    assert engine.peer_stats(peer).lost == 1
    if number == signal.SIGSTOP:
        receiver.signal(signal.SIGCONT)


def test_drained_waits_for_what_is_in_flight(patient: Engine, receiver: Child) -> None:
    engine = patient
    side, peer, remote = connect(engine, receiver)
    data = noise(SHAPE.total)
    region, counter = register(engine, data), engine.counter()
    receiver.signal(signal.SIGSTOP)
    counter.add(SHAPE.layers)
    handle = engine.arm(program(counter, SHAPE, 1, lane(SHAPE, region, peer, remote, order(), order())))
    while engine.stats().in_flight == 0:
        time.sleep(0.001)
    engine.cancel(handle)
    side.settle(0.3)
    assert not any(isinstance(event, ProgramDrained) for event in side.seen)
    receiver.signal(signal.SIGCONT)
    assert side.wait(ProgramDrained) == [ProgramDrained(handle)]
    assert engine.stats().in_flight == 0
    region.close()


def test_writes_after_a_revoke_land_nowhere(engine: Engine, sender: Child, provider: str) -> None:
    pool, region = offer(engine, sender)
    region.revoke("child")
    pool[:] = 0x77
    if provider == "shm":
        time.sleep(0.3)  # this provider reports success for a write that its target refused
    else:
        assert "ProgramFailed" in str(sender.hear()["failed"])
    assert (pool == 0x77).all()
    region.close()


@pytest.mark.parametrize("known", ["", "at once", "later"])
def test_stopped_sender_cannot_write_into_reused_pages(engine: Engine, provider: str, known: str) -> None:
    sender = Child("sender", provider, "big")
    try:
        pool, region = offer(engine, sender, known=known)
        sender.signal(signal.SIGSTOP)
        region.revoke("child")
        pool[:] = 0x77
        sender.signal(signal.SIGCONT)
        time.sleep(0.2)
        assert (pool == 0x77).all()
        region.close()
    finally:
        sender.end()


@pytest.mark.parametrize("provider", ["tcp"], indirect=False)
@pytest.mark.parametrize("known", ["at once", "later"])
@pytest.mark.parametrize("alive", [True, False])
def test_a_fence_spares_other_processes_when_it_knows_whom_to_cut(
    engine: Engine, provider: str, known: str, alive: bool
) -> None:
    fenced, spared = Child("sender", provider), Child("sender", provider)
    try:
        kept = [offer(engine, child, known=known) for child in (fenced, spared)]
        if not alive:
            fenced.signal(signal.SIGKILL)
            fenced.process.wait()
        kept[0][1].revoke("child")
        before, end = engine.stats().immediates, time.monotonic() + 20
        while engine.stats().immediates < before + 2000:
            assert time.monotonic() < end, "the fence cut off another process"
            time.sleep(0.001)
        kept[1][1].revoke("child")
    finally:
        fenced.end()
        spared.end()


@pytest.mark.parametrize("provider", ["shm"])
def test_the_next_engine_clears_what_a_killed_process_left(receiver: Child, provider: str) -> None:
    receiver.hear()

    def left() -> list[Path]:
        return [path for path in Path("/dev/shm").glob("pyfabric-*") if f"-{receiver.process.pid}-" in path.name]

    assert left()
    with Engine(provider=provider):
        assert left(), "an endpoint in use was removed"
    receiver.end()
    assert left()
    with Engine(provider=provider):
        assert not left()


def test_a_killed_sender_leaves_the_receiver_usable(engine: Engine, sender: Child, provider: str) -> None:
    pool, region = offer(engine, sender)
    sender.signal(signal.SIGKILL)
    sender.process.wait()
    second = Child("sender", provider)
    try:
        before = engine.stats().immediates
        again = region.grant("second")
        second.hear()
        second.say(address=engine.address.hex(), base=again.base, key=again.key, nbytes=again.nbytes)
        assert second.hear() == {"sending": True}
        while engine.stats().immediates < before + 2000:
            time.sleep(0.001)
    finally:
        second.end()
    region.close()
    assert pool.any()


def test_warming_an_absent_peer_ends_as_lost(engine: Engine, receiver: Child) -> None:
    address = bytes.fromhex(receiver.hear()["address"])
    receiver.end()
    peer = engine.connect(address)
    engine.warm(peer)
    (lost,) = Side(engine).wait(PeerLost, seconds=10)
    assert isinstance(lost, PeerLost)
    assert (lost.peer, bool(lost.reason)) == (peer, True)


PAUSED = """
import os, sys, threading
from pyfabric import Engine
def use(slot):
    while not over.is_set():
        engine.expect(slot, 1)
        try:
            engine.forget(slot)  # waits for the worker
        except Exception:
            os._exit(1)
over = threading.Event()
with Engine(provider="tcp") as engine:
    engine.start()
    users = [threading.Thread(target=use, args=[slot]) for slot in range(16)]
    for user in users:
        user.start()
    print("on", flush=True)
    sys.stdin.read()
    over.set()
    for user in users:
        user.join()
"""


@pytest.mark.slow
def test_a_process_that_was_stopped_does_not_take_the_stop_for_a_hang() -> None:
    """Stopped while it waits for its own worker, for longer than it has patience with it (5 s)."""
    child = subprocess.Popen([sys.executable, "-c", PAUSED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "on\n"
        child.send_signal(signal.SIGSTOP)
        time.sleep(6)
        child.send_signal(signal.SIGCONT)
        time.sleep(0.5)
        child.communicate(timeout=10)
        assert child.returncode == 0
    finally:
        child.kill()
        child.wait()
