"""Ports for servers that a test starts."""

import os
import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from itertools import count
from pathlib import Path

LOWEST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port that nothing listens on now, and that nobody is given who asks the kernel for any."""
    return free_range(1)


def free_range(length: int) -> int:
    """The first of `length` such ports in a row. No two calls of a process give the same port.

    The kernel's own choice for a port of 0 is also its choice for every outgoing connection, of which other tests have
    many: such a port can be taken again before its server listens.
    """
    for first in _firsts(length):
        with ExitStack() as probes:
            try:
                for port in range(first, first + length):
                    probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("unreachable: the numbers have no end")


def _firsts(length: int) -> Iterator[int]:
    highest = _highest()
    turn = _turns()
    while True:
        first = LOWEST + next(turn) % (highest - LOWEST)
        for _ in range(length - 1):
            next(turn)
        if first + length <= highest:
            yield first


@cache
def _turns() -> Iterator[int]:
    """Each process begins somewhere else, so that two test runs do not meet."""
    return count(random.Random(os.getpid()).randrange(1 << 16))


@cache
def _highest() -> int:
    return int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32768
