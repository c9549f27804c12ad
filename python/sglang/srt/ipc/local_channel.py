"""A channel inside one process: for the offline engine and for tests."""

from collections import deque
from typing import Generic, TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


class LocalChannel(Generic[In, Out]):
    """One end of a pair of queues; deque operations are atomic, so that the ends may live in two threads."""

    def __init__(self, incoming: deque[In], outgoing: deque[Out]) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def send(self, message: Out) -> None:
        self._outgoing.append(message)

    def poll(self) -> list[In]:
        return [self._incoming.popleft() for _ in range(len(self._incoming))]

    def close(self) -> None:
        self._incoming.clear()


def local_pair(there: type[In], back: type[Out]) -> tuple[LocalChannel[Out, In], LocalChannel[In, Out]]:
    """Two connected ends: the first sends `there` and receives `back`, the second the other way round."""
    one: deque[In] = deque()
    two: deque[Out] = deque()
    return LocalChannel(two, one), LocalChannel(one, two)
