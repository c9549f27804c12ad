"""Several domains an engine: one batch uses them all, and the receiver's count does not notice."""

import os
import socket
import stat
import struct
from collections import Counter as Count
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from fabric_kit import Shape, Side, expected, lane, noise, poisoned, program, register, wait_slot

from pyfabric import Engine, PeerReady, ProgramDone, RemoteRegion

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")
SHAPE = Shape(layers=4, pages=64)


@pytest.fixture(params=[(1, 1), (4, 4), (4, 2), (1, 3)], ids=str)
def sides(request: pytest.FixtureRequest) -> Iterator[tuple[Side, Side]]:
    """Engines of so many sending and receiving domains."""
    sending, receiving = request.param
    with (
        Engine(provider="tcp", domains=HOSTS[:sending]) as sender,
        Engine(provider="tcp", domains=HOSTS[:receiving]) as receiver,
    ):
        sender.start()
        receiver.start()
        yield Side(sender), Side(receiver)


def test_a_batch_is_spread_and_counted_as_one(sides: tuple[Side, Side]) -> None:
    sender, receiver = sides
    source, destination = noise(SHAPE.total), poisoned(SHAPE.total)
    region, target = register(sender.engine, source), register(receiver.engine, destination)
    grant = target.grant("s")
    assert 1 + len(grant.further_keys) == len(receiver.engine.domains)
    peer = sender.engine.connect(receiver.engine.address)
    sender.engine.warm(peer)
    sender.wait(PeerReady)
    order = [int(page) for page in np.random.default_rng(4).permutation(SHAPE.pages)]
    receiver.engine.expect(3, SHAPE.layers * SHAPE.pages)
    counter = sender.engine.counter()
    counter.add(SHAPE.layers)
    sender.engine.arm(program(counter, SHAPE, 3, lane(SHAPE, region, peer, grant, order, order[::-1])))
    sender.wait(ProgramDone)
    wait_slot(receiver, 3)
    assert np.array_equal(destination, expected(SHAPE, source, order, order[::-1]))
    assert receiver.engine.forget(3) == SHAPE.layers * SHAPE.pages
    assert sender.engine.peer_stats(peer).pages_posted == SHAPE.layers * SHAPE.pages


def sockets() -> Iterator[socket.socket]:
    """Copies of this process's TCP sockets, closed when the next is asked for."""
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            if not stat.S_ISSOCK(entry.stat().st_mode):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as sock:
                if (sock.family, sock.type) == (socket.AF_INET, socket.SOCK_STREAM):
                    yield sock


def received_bytes() -> Count[str]:
    """tcpi_bytes_received (linux/tcp.h) of this process's TCP sockets, by local address."""
    found: Count[str] = Count()
    for sock in sockets():
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        found[sock.getsockname()[0]] += struct.unpack_from("Q", info, 128)[0]
    return found


def test_an_accepted_connection_has_room_from_its_start() -> None:
    """A kernel begins with 128 KiB (tcp_rmem) and raises it late; the mark that asks for more must not stay."""
    with Engine(provider="tcp") as sender, Engine(provider="tcp") as receiver:
        sender.start()
        receiver.start()
        peer, side = sender.connect(receiver.address), Side(sender)
        sender.warm(peer)
        side.wait(PeerReady)
        listening = {s.getsockname() for s in sockets() if s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)}
        accepted = [
            (s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF), s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))
            for s in sockets()
            if s.getsockname() in listening and not s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        ]
    most = int(Path("/proc/sys/net/ipv4/tcp_rmem").read_text().split()[2])
    ((room, mark),) = accepted
    assert room >= min(8 << 20, most // 2)
    assert mark == 1


def test_every_connection_carries_its_share() -> None:
    """Counted by the kernel: bytes that each receiving address took in."""
    with Engine(provider="tcp", domains=HOSTS) as sender, Engine(provider="tcp", domains=HOSTS) as receiver:
        sender.start()
        receiver.start()
        source, destination = noise(1 << 24), poisoned(1 << 24)
        region, target = register(sender, source), register(receiver, destination)
        shape = Shape(layers=1, pages=256, page_bytes=1 << 16, nbytes=1 << 16)
        peer, counter, side = sender.connect(receiver.address), sender.counter(), Side(sender)
        order = list(range(0, 256, 2)) + list(range(1, 256, 2))
        before = received_bytes()
        sender.arm(program(counter, shape, 0, lane(shape, region, peer, target.grant("s"), order, order)))
        counter.add()
        side.wait(ProgramDone)
        after = received_bytes()
        share = {host: after[host] - before[host] for host in HOSTS}
        assert min(share.values()) > shape.total / len(HOSTS) * 0.9, share


def test_a_grant_of_another_engine_is_refused(sides: tuple[Side, Side]) -> None:
    sender, receiver = sides
    region = register(sender.engine, noise(SHAPE.total))
    peer = sender.engine.connect(receiver.engine.address)
    wrong = RemoteRegion(0, 1, SHAPE.total, tuple(range(len(receiver.engine.domains))))
    with pytest.raises(ValueError, match="keys"):
        sender.engine.arm(program(sender.engine.counter(), SHAPE, 0, lane(SHAPE, region, peer, wrong, [0], [0])))


@pytest.mark.parametrize(
    ("provider", "domains", "names"), [("tcp", ["127.0.0.1"] * 65, "at most"), ("mapped", ["x"], "domains")]
)
def test_impossible_domains_are_refused(provider: str, domains: list[str], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        Engine(provider=provider, domains=domains)
