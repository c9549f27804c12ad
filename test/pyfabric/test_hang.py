"""A worker that hangs inside its provider: everything that was armed ends, nobody waits for it."""

import contextlib
import ctypes
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fabric_kit import Shape, Side, lane, noise, program, register

from pyfabric import Engine, PeerLost, PeerReady, ProgramFailed, WorkerHungError

SYS_USERFAULTFD, USER_MODE_ONLY = 323, 1  # x86-64
API, REGISTER = 0xC018AA3F, 0xC020AA00
SHAPE = Shape(layers=1, pages=4)


def workers() -> list[str]:
    """The engines' threads of this process."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may end between the two looks
            names.append((task / "comm").read_text().strip())
    return [name for name in names if name.startswith("pyfabric")]


@pytest.fixture
def trap() -> Iterator[np.ndarray]:
    """Memory whose first touch waits until the test is over (userfaultfd(2))."""
    fd = ctypes.CDLL(None, use_errno=True).syscall(SYS_USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK | USER_MODE_ONLY)
    if fd < 0 or os.uname().machine != "x86_64":
        pytest.skip("no userfaultfd here")
    memory = mmap.mmap(-1, SHAPE.total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(memory, np.uint8)
    fcntl.ioctl(fd, API, struct.pack("<QQQ", 0xAA, 0, 0))
    fcntl.ioctl(fd, REGISTER, struct.pack("<QQQQ", array.ctypes.data, SHAPE.total, 1, 0))
    yield array
    os.close(fd)
    limit = time.monotonic() + 20
    while workers() and time.monotonic() < limit:  # the one left behind goes on, and still copies to this memory
        time.sleep(0.01)
    assert not workers(), "the worker that was left behind never ended"


def test_a_hanging_worker_is_spoken_for(trap: np.ndarray) -> None:
    with Engine(provider="mapped") as sender:
        sender.start()
        # The receiver copies, so its worker is the one to hang.
        receiver = Engine(provider="mapped", post_deadline_s=0.2)
        receiver.start()
        side, back = Side(receiver), receiver.connect(sender.address)
        receiver.warm(back)
        side.wait(PeerReady)
        data, other = noise(SHAPE.total), noise(SHAPE.total, 2)
        region, target = register(sender, data), receiver.register(trap.ctypes.data, SHAPE.total)
        waiting = register(receiver, other)
        grant = target.grant("s")
        never = program(receiver.counter(), SHAPE, 0, lane(SHAPE, waiting, back, grant, [0], [0]))
        handle = receiver.arm(never)
        time.sleep(0.05)
        assert receiver.poll() == []
        counter = sender.counter()
        counter.add()
        peer = sender.connect(receiver.address)
        sender.arm(program(counter, SHAPE, 0, lane(SHAPE, region, peer, grant, [0], [0])))
        (failed,) = side.wait(ProgramFailed, seconds=8)
        assert isinstance(failed, ProgramFailed) and failed.handle == handle and "hangs" in failed.reason
        assert [event.peer for event in side.wait(PeerLost) if isinstance(event, PeerLost)] == [back]
        with pytest.raises(WorkerHungError):
            receiver.arm(never)
        with pytest.raises(WorkerHungError):
            target.revoke("s")
        started = time.monotonic()
        with pytest.raises(WorkerHungError):
            receiver.close()
        assert time.monotonic() - started < 2
