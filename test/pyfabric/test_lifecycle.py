"""Opening, closing, idling, warming, cancelling."""

import os
import select
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fabric_kit import POISON, Shape, Side, lane, noise, poisoned, program, register

from conftest import Pair
from pyfabric import (
    Engine,
    PeerLost,
    PeerReady,
    ProgramDone,
    ProgramDrained,
    ProgramFailed,
    SlotComplete,
    _core,
)

TERMINAL = ProgramDone | ProgramDrained | ProgramFailed


def footprint() -> tuple[set[str], int, int]:
    """Shared-memory files, open descriptors and threads."""
    names = {path.name for path in Path("/dev/shm").glob("pyfabric-*") if f"-{os.getpid()}-" in path.name}
    return names, *(len(list(Path("/proc/self", kind).iterdir())) for kind in ("fd", "task"))


def gone(before: tuple[set[str], int, int]) -> bool:
    """Whether nothing is there but what was. A thread that was joined is in /proc until its last few steps are done."""
    limit = time.monotonic() + 10
    while (now := footprint())[0] != before[0] or now[1] > before[1] or now[2] > before[2]:
        if time.monotonic() > limit:
            return False
        time.sleep(0.01)
    return True


def test_close_is_idempotent_and_leaves_nothing(provider: str) -> None:
    before = footprint()
    for _ in range(3):
        engine = Engine(provider=provider)
        engine.start()
        engine.start()
        engine.close()
        engine.close()
        with pytest.raises(ValueError, match="closed"):
            engine.start()
        with pytest.raises(ValueError, match="closed"):
            engine.connect(engine.address)
        del engine
    assert gone(before), (before, footprint())


def test_a_connection_that_never_spoke_is_closed_with_its_engine() -> None:
    """One that a peer opens just before the engine closes, or a port scan. libfabric 2.5.1 would leave its socket."""
    first = footprint()
    with Engine(provider="tcp"):
        pass  # what the library sets up once
    before = first[0], footprint()[1], first[2]
    with Engine(provider="tcp") as engine:
        engine.start()
        at = engine.address.index(socket.inet_aton("127.0.0.1"))
        (port,) = struct.unpack(">H", engine.address[at - 2 : at])
        while not engine.stats().sleeps:
            time.sleep(0.01)
        asleep = engine.stats().sleeps
        with socket.create_connection(("127.0.0.1", port)) as silent:
            while engine.stats().sleeps == asleep:  # until the worker has accepted it and sleeps again
                time.sleep(0.01)
            engine.close()
            silent.settimeout(5)
            assert silent.recv(1) == b"", "the engine's end is still open"
    del engine
    assert gone(before), (before, footprint())


def test_engine_that_never_started_closes(provider: str) -> None:
    with Engine(provider=provider) as engine:
        assert engine.poll() == []
        assert engine.library.endswith("libfabric.so.1")


def test_idle_engine_uses_less_than_a_hundredth_of_a_core(pair: Pair) -> None:
    ticks = os.sysconf("SC_CLK_TCK")

    def worker_ticks() -> dict[str, int]:
        found = {}
        for task in Path("/proc/self/task").iterdir():
            try:
                name, _, rest = (task / "stat").read_text().partition(")")
            except (FileNotFoundError, ProcessLookupError):  # it ended between the two looks
                continue
            if "pyfabric" in name:
                fields = rest.split()
                found[task.name] = int(fields[11]) + int(fields[12])
        return found

    time.sleep(0.3)
    before = worker_ticks()
    assert len(before) == 4, "a worker and its watchdog an engine"
    time.sleep(2.5)
    after = worker_ticks()
    used = sum(after.values()) - sum(before.values())
    assert used / ticks <= 0.01 * 2.5 * 2 + 1 / ticks, f"{used} ticks in 2.5 s"


def test_fileno_is_readable_exactly_while_events_wait(pair: Pair) -> None:
    engine = pair.sender.engine
    assert select.select([engine], [], [], 0)[0] == []
    engine.warm(pair.peer)
    assert select.select([engine], [], [], 10)[0] == [engine]
    assert engine.poll() == [PeerReady(pair.peer)]
    assert select.select([engine], [], [], 0)[0] == []


def test_expect_before_start_and_program_before_start(provider: str) -> None:
    shape = Shape(layers=1, pages=4)
    with Engine(provider=provider) as sender, Engine(provider=provider) as receiver:
        data, pool = noise(shape.total), poisoned(shape.total)
        region, target = register(sender, data), register(receiver, pool)
        receiver.expect(0, 1)
        peer, counter = sender.connect(receiver.address), sender.counter()
        counter.add(5)
        sender.arm(program(counter, shape, 0, lane(shape, region, peer, target.grant("s"), [1], [2])))
        sender.start()
        receiver.start()
        Side(sender).wait(ProgramDone)
        Side(receiver).wait(SlotComplete)
        assert (pool.reshape(4, -1)[2] == data.reshape(4, -1)[1]).all()


def test_cancel_before_the_threshold_writes_nothing(pair: Pair) -> None:
    shape = Shape(layers=2, pages=4)
    data, pool = noise(shape.total), poisoned(shape.total)
    region, target = register(pair.sender.engine, data), register(pair.receiver.engine, pool)
    counter = pair.sender.engine.counter()
    handle = pair.sender.engine.arm(
        program(counter, shape, 0, lane(shape, region, pair.peer, target.grant("s"), [1], [2]))
    )
    pair.sender.engine.cancel(handle)
    pair.sender.engine.cancel(handle)
    assert pair.sender.wait(ProgramDrained) == [ProgramDrained(handle)]
    counter.add(2)
    pair.sender.settle(0.1)
    assert (pool == POISON).all()
    assert [e for e in pair.sender.seen if isinstance(e, TERMINAL)] == [ProgramDrained(handle)]
    pair.sender.engine.cancel(handle)
    region.close()


def test_cancel_in_the_middle_drains_and_then_nothing_lands(pair: Pair) -> None:
    shape = Shape(layers=8, pages=256, page_bytes=16384, nbytes=16384)
    data, pool = noise(shape.total), poisoned(shape.total)
    region, target = register(pair.sender.engine, data), register(pair.receiver.engine, pool)
    counter = pair.sender.engine.counter()
    order = list(np.random.default_rng(1).permutation(shape.pages))
    counter.add(shape.layers - 1)  # the last layer is never due: something is left, however late the cancel comes
    handle = pair.sender.engine.arm(
        program(counter, shape, 0, lane(shape, region, pair.peer, target.grant("s"), order, order))
    )
    while pair.sender.engine.stats().writes_posted < 50:
        pass
    pair.sender.engine.cancel(handle)
    assert pair.sender.wait(ProgramDrained) == [ProgramDrained(handle)]
    landed = pool.copy()
    pages = landed.reshape(-1, shape.page_bytes)
    assert pair.sender.engine.stats().pages_posted < shape.layers * shape.pages
    assert 0 < (pages == data.reshape(pages.shape)).all(axis=1).sum() < len(pages)
    pair.sender.settle(0.1)
    assert np.array_equal(pool, landed)


def test_each_program_ends_exactly_once_under_a_storm(pair: Pair) -> None:
    shape = Shape(layers=3, pages=8)
    data, pool = noise(shape.total), poisoned(shape.total)
    engine = pair.sender.engine
    region, target = register(engine, data), register(pair.receiver.engine, pool)
    grant, counter, rng = target.grant("s"), engine.counter(), np.random.default_rng(5)
    handles = []
    for _ in range(300):
        order = list(rng.permutation(8))
        handles.append(engine.arm(program(counter, shape, 0, lane(shape, region, pair.peer, grant, order, order))))
        if rng.random() < 0.3:
            counter.add()
        if rng.random() < 0.4:
            engine.cancel(int(rng.choice(handles)))
    counter.add(shape.layers)
    pair.sender.wait(TERMINAL, count=len(handles))
    pair.sender.settle(0.05)  # and no second one
    assert engine.stats().armed == 0
    ended = [e.handle for e in pair.sender.seen if isinstance(e, TERMINAL)]
    assert sorted(ended) == handles
    assert not any(isinstance(e, ProgramFailed) for e in pair.sender.seen)
    assert engine.stats().in_flight == 0


def test_close_ends_waiting_programs(pair: Pair) -> None:
    shape = Shape(layers=1, pages=4)
    data, pool = noise(shape.total), poisoned(shape.total)
    region, target = register(pair.sender.engine, data), register(pair.receiver.engine, pool)
    handle = pair.sender.engine.arm(
        program(pair.sender.engine.counter(), shape, 0, lane(shape, region, pair.peer, target.grant("s"), [1], [2]))
    )
    pair.sender.engine.close()
    assert pair.sender.engine.poll() == [ProgramFailed(handle, -1, "engine closed")]
    region.close()


def test_a_receiver_may_close_while_it_is_written_to(pair: Pair, provider: str) -> None:
    """Over shm an endpoint of the same process is written to through its own memory, which goes away with it."""
    shape = Shape(layers=1, pages=512, page_bytes=64, nbytes=64)
    data, pool = noise(shape.total), poisoned(shape.total)
    sender, order = pair.sender.engine, list(range(shape.pages))
    region, counter = register(sender, data), sender.counter()
    counter.add()
    for _ in range(1 if provider == "tcp" else 20):  # tcp: a probe takes 3 s to tell that the peer is gone
        with Engine(provider=provider) as receiver:
            receiver.start()
            target = register(receiver, pool)
            peer = sender.connect(receiver.address)
            one = program(counter, shape, 7, lane(shape, region, peer, target.grant("s"), order, order[::-1]))
            handles = [sender.arm(one) for _ in range(100)]
            while receiver.stats().immediates < 500:
                pass
        handles.append(sender.arm(one))  # the others may be through by now
        pair.sender.wait(TERMINAL, count=len(handles))
        assert sorted(event.handle for event in pair.sender.seen if isinstance(event, TERMINAL)) == handles
        assert isinstance(pair.sender.wait(PeerLost)[0], PeerLost)
        assert sender.stats().in_flight == 0
        sender.disconnect(peer)
        pair.sender.seen.clear()


def test_a_sender_may_close_before_its_first_write_was_taken_in(provider: str) -> None:
    """Over shm the receiver reads the greeting of an endpoint of the same process in that one's memory."""
    with Engine(provider=provider) as receiver:
        receiver.start()
        for wait in range(40):
            with Engine(provider=provider) as sender:
                sender.start()
                sender.warm(sender.connect(receiver.address))
                time.sleep(wait * 1e-5)
        with Engine(provider=provider) as sender:
            sender.start()
            sender.warm(sender.connect(receiver.address))
            Side(sender).wait(PeerReady)


def test_disconnect_fails_programs_and_forgets_the_peer(pair: Pair) -> None:
    shape = Shape(layers=1, pages=4)
    data, pool = noise(shape.total), poisoned(shape.total)
    engine = pair.sender.engine
    region, target = register(engine, data), register(pair.receiver.engine, pool)
    counter = engine.counter()
    one = program(counter, shape, 0, lane(shape, region, pair.peer, target.grant("s"), [1], [2]))
    handle = engine.arm(one)
    engine.disconnect(pair.peer)
    assert pair.sender.wait(ProgramFailed) == [ProgramFailed(handle, pair.peer, "disconnected")]
    with pytest.raises(ValueError, match="peer"):
        engine.arm(one)
    again = engine.connect(pair.receiver.engine.address)
    assert again != pair.peer
    pair.sender.seen.clear()
    engine.warm(again)
    pair.sender.wait(PeerReady)


def test_a_word_bumped_without_add_is_noticed(pair: Pair) -> None:
    import ctypes

    shape = Shape(layers=1, pages=4)
    data, pool = noise(shape.total), poisoned(shape.total)
    region, target = register(pair.sender.engine, data), register(pair.receiver.engine, pool)
    counter = pair.sender.engine.counter()
    pair.sender.engine.arm(program(counter, shape, 0, lane(shape, region, pair.peer, target.grant("s"), [1], [2])))
    pair.sender.settle(0.05)
    ctypes.c_uint64.from_address(counter.address).value = 1
    pair.sender.wait(ProgramDone, seconds=5)
    assert counter.value == 1


def test_command_line_lists_the_library_and_providers() -> None:
    out = subprocess.run([sys.executable, "-m", "pyfabric"], capture_output=True, text=True, check=True, timeout=60)
    assert "libfabric" in out.stdout
    assert "shm" in out.stdout
    assert "…" not in out.stdout, "a cell was cut"
    assert f"{_core.library_path()} (" in out.stdout, "a line was broken"


def test_shm_refuses_to_write_both_ways_within_one_process() -> None:
    """libfabric 2.5.1 would crash; after a close the pair may be formed the other way round."""
    with Engine(provider="shm") as a, Engine(provider="shm") as b, Engine(provider="shm") as c:
        assert a.connect(b.address) >= 0
        assert c.connect(b.address) >= 0
        with pytest.raises(ValueError, match=r"over shm .* one process cannot write to each other"):
            b.connect(a.address)
        a.close()
        with pytest.raises(ValueError, match="cannot write to each other"):
            b.connect(c.address)
