"""What is special about provider "mapped": shareable memory and its checks, senders that misbehave, what is left."""

import errno
import fcntl
import mmap
import os
import socket
import struct
import time
from pathlib import Path

import numpy as np
import pytest
from fabric_kit import _FILES, POISON, Shape, Side, lane, noise, poisoned, program, register, shared

from conftest import Pair
from pyfabric import Engine, PeerLost, PeerReady, ProgramDone, ProgramFailed

SHAPE = Shape(layers=1, pages=8)


@pytest.fixture
def provider() -> str:
    return "mapped"


def test_private_memory_receives_but_does_not_send(pair: Pair) -> None:
    data, pool = np.zeros(SHAPE.total, np.uint8), poisoned(SHAPE.total)
    region = pair.sender.engine.register(data.ctypes.data, data.nbytes)
    target = register(pair.receiver.engine, pool)
    one = lane(SHAPE, region, pair.peer, target.grant("s"), [0], [0])
    with pytest.raises(ValueError, match="register it with fd"):
        pair.sender.engine.arm(program(pair.sender.engine.counter(), SHAPE, 0, one))


def test_descriptors_are_checked(pair: Pair) -> None:
    engine = pair.sender.engine
    array = shared(1 << 16)
    loose = os.memfd_create("loose")
    os.ftruncate(loose, 1 << 16)
    unsealed = np.frombuffer(mmap.mmap(loose, 1 << 16), np.uint8)
    with pytest.raises(ValueError, match="sealed"):
        engine.register(unsealed.ctypes.data, unsealed.nbytes, fd=loose)
    other = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    os.ftruncate(other, 1 << 16)
    fcntl.fcntl(other, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with pytest.raises(ValueError, match="not a shared mapping"):
        engine.register(array.ctypes.data, array.nbytes, fd=other)
    with pytest.raises(ValueError, match="sealed"):
        engine.register(array.ctypes.data, array.nbytes, fd=9999)
    os.close(loose)
    os.close(other)


def test_part_of_a_file_is_sent_from_its_own_offset(pair: Pair) -> None:
    """A region that starts in the middle of its file and of a page."""
    array, pool = shared(1 << 16), poisoned(SHAPE.total)
    array[:] = np.arange(1 << 16, dtype=np.uint64).astype(np.uint8) ^ 0x5A
    start = 4096 * 3 + 256
    region = pair.sender.engine.register(
        array.ctypes.data + start, SHAPE.total, fd=_FILES[array.ctypes.data], fd_offset=start
    )
    target, counter = register(pair.receiver.engine, pool), pair.sender.engine.counter()
    counter.add()
    whole = lane(SHAPE, region, pair.peer, target.grant("s"), list(range(8)), list(range(8))[::-1])
    pair.sender.engine.arm(program(counter, SHAPE, 0, whole))
    pair.sender.wait(ProgramDone)
    assert np.array_equal(pool.reshape(8, -1), array[start : start + SHAPE.total].reshape(8, -1)[::-1])


def test_a_revoked_key_is_named(pair: Pair) -> None:
    pool = poisoned(SHAPE.total)
    region, target = register(pair.sender.engine, noise(SHAPE.total)), register(pair.receiver.engine, pool)
    grant, counter = target.grant("s"), pair.sender.engine.counter()
    target.revoke("s")
    counter.add()
    pair.sender.engine.arm(program(counter, SHAPE, 0, lane(SHAPE, region, pair.peer, grant, [1], [1])))
    (failed,) = pair.sender.wait(ProgramFailed)
    assert isinstance(failed, ProgramFailed) and "no such memory key" in failed.reason
    assert (pool == POISON).all()
    pair.sender.settle(0.1)
    assert not any(isinstance(event, PeerLost) for event in pair.sender.seen), "it refuses, it is not gone"


def test_closed_sources_are_unmapped_at_the_receiver(pair: Pair) -> None:
    def maps() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:pyfabric-test")

    pool = poisoned(SHAPE.total)
    target = register(pair.receiver.engine, pool)
    grant, counter = target.grant("s"), pair.sender.engine.counter()
    counter.add()
    before = maps()
    for round_ in range(5):
        data = noise(SHAPE.total)
        region = register(pair.sender.engine, data)
        pair.sender.engine.arm(program(counter, SHAPE, 0, lane(SHAPE, region, pair.peer, grant, [0], [0])))
        pair.sender.wait(ProgramDone, count=round_ + 1)
        region.close()
        del region, data
    limit = time.monotonic() + 5
    while maps() > before and time.monotonic() < limit:
        time.sleep(0.05)
    assert maps() <= before


def test_an_idle_peer_that_closes_is_lost_at_once(provider: str) -> None:
    with Engine(provider=provider) as sender:
        sender.start()
        receiver = Engine(provider=provider)
        receiver.start()
        side, peer = Side(sender), sender.connect(receiver.address)
        sender.warm(peer)
        side.wait(PeerReady)
        receiver.close()
        (lost,) = side.wait(PeerLost, seconds=2)
        assert isinstance(lost, PeerLost) and lost.peer == peer
        assert sender.peer_stats(peer).lost == 1


def socket_name(engine: Engine) -> bytes:
    return engine.address.split(b"mapped", 1)[1][16:]


# mapped_ring.hpp: words of the ring, and of an entry.
ENTRIES, EXTENTS = 128, 8
SUBMITTED, COMPLETED, LIST = 64, 128, 384
ENTRY = struct.Struct("<QQIIIi" + "QQQ" * EXTENTS)


class Stranger:
    """A sender that fills its ring with what it likes."""

    def __init__(self, engine: Engine) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(b"\0" + socket_name(engine))
        size = LIST + ENTRIES * ENTRY.size
        size += -size % 64
        fd = os.memfd_create("ring", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.ring = mmap.mmap(fd, size)
        struct.pack_into("<II", self.ring, 0, 0x474E4952, ENTRIES)
        socket.send_fds(self.socket, [struct.pack("<IIQQQ", 1, 1, 0, 0, 0)], [fd])
        os.close(fd)
        self.submitted = 0

    def offer_source(self, region: int, array: np.ndarray) -> None:
        message = struct.pack("<IIQQQ", 2, 1, region, 0, 0)
        socket.send_fds(self.socket, [message], [_FILES[array.ctypes.data]])

    def submit(self, *words: int) -> int:
        """Puts one entry up and returns its status, -1 when the receiver hangs up on it."""
        at = LIST + self.submitted % ENTRIES * ENTRY.size
        ENTRY.pack_into(self.ring, at, *words, *[0] * (6 + 3 * EXTENTS - len(words)))
        self.submitted += 1
        struct.pack_into("<Q", self.ring, SUBMITTED, self.submitted)
        self.socket.send(struct.pack("<IIQQQ", 4, 1, 0, 0, 0))
        limit = time.monotonic() + 5
        while struct.unpack_from("<Q", self.ring, COMPLETED)[0] != self.submitted:
            if time.monotonic() > limit:
                return -1
        return int(ENTRY.unpack_from(self.ring, at)[5])


def test_entries_are_checked_word_by_word(pair: Pair) -> None:
    pool, source = poisoned(SHAPE.total), noise(SHAPE.total)
    target = register(pair.receiver.engine, pool)
    key, size, top = target.grant("stranger").key, SHAPE.total, 2**64 - 1
    stranger = Stranger(pair.receiver.engine)
    stranger.offer_source(7, source)
    good = (7, key, 1, 1, 1, 0)
    assert stranger.submit(8, key, 1, 1, 1, 0, 0, 0, 64) == errno.EINVAL, "an unknown source"
    assert stranger.submit(7, key ^ 1, 1, 1, 1, 0, 0, 0, 64) == errno.EACCES
    for extents in (0, EXTENTS + 1, 2**32 - 1):
        assert stranger.submit(7, key, 1, 1, extents, 0, 0, 0, 64) == errno.EINVAL
    for words in (
        (0, size, 1),
        (size, 0, 1),
        (0, 0, size + 1),
        (top, 0, 1),
        (0, top, 1),
        (1, 1, top),
        (64, 0, top - 32),
    ):
        assert stranger.submit(*good, *words) == errno.ERANGE, words
    assert (pool == POISON).all()
    rng = np.random.default_rng(3)
    for _ in range(300):
        words = rng.integers(0, 2**63, 6 + 3 * EXTENTS).tolist()
        picks = rng.random(3)
        entry = [7 if picks[0] < 0.7 else words[0], key if picks[1] < 0.7 else words[1], words[2] >> 31, 1]
        entry += [words[4] % 12 if picks[2] < 0.9 else words[4] >> 31, 0]
        assert stranger.submit(*entry, *words[6:]) > 0
    assert (pool == POISON).all()
    assert pair.receiver.engine.stats().immediates == 0, "what is refused is not counted"
    assert stranger.submit(*good, 0, 128, 64) == 0
    assert np.array_equal(pool[128:192], source[:64]) and (pool[192:] == POISON).all()
    struct.pack_into("<Q", stranger.ring, SUBMITTED, 2**63)
    stranger.socket.send(struct.pack("<IIQQQ", 4, 1, 0, 0, 0))
    stranger.socket.settimeout(5)
    assert stranger.socket.recv(64) == b"", "a ring that runs away is dropped"
    stranger.socket.close()
    pair.sender.seen.clear()
    pair.sender.engine.warm(pair.peer)
    pair.sender.wait(PeerReady)


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"x" * 7,
        b"x" * 4096,
        struct.pack("<IIQQQ", 9, 1, 0, 0, 0),
        struct.pack("<IIQQQ", 1, 7, 0, 0, 0),
        struct.pack("<IIQQQ", 1, 1, 0, 0, 0),
        struct.pack("<IIQQQ", 2, 1, 5, 0, 0),
    ],
    ids=["hang-up", "short", "long", "unknown", "version", "no-ring", "no-memory"],
)
@pytest.mark.parametrize("passes", [None, "small", "unsealed"])
def test_a_stranger_that_talks_nonsense_is_dropped(pair: Pair, note: bytes, passes: str | None) -> None:
    name = socket_name(pair.receiver.engine)
    fds = []
    if passes:
        fds = [os.memfd_create("stranger", os.MFD_ALLOW_SEALING)]
        os.ftruncate(fds[0], 64 if passes == "small" else 1 << 20)
        if passes == "small":
            fcntl.fcntl(fds[0], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.settimeout(5)
        stranger.connect(b"\0" + name)
        if note:
            socket.send_fds(stranger, [note], fds)
            assert stranger.recv(64) == b"", "the receiver hangs up"
    for fd in fds:
        os.close(fd)
    pair.sender.seen.clear()
    pair.sender.engine.warm(pair.peer)
    pair.sender.wait(PeerReady)
