"""One sleep for every source of the scheduler's loop."""

from collections.abc import Iterable

import zmq


class ZmqWaiter:
    """A `Waiter` over ZeroMQ sockets and plain descriptors.

    zmq_poll knows that a ZeroMQ descriptor is edge-triggered and looks at the socket itself, so that a send between two
    polls cannot swallow the wake-up of a message that came in.
    """

    def __init__(self, sources: Iterable["zmq.Socket[bytes] | int"]) -> None:
        self._poller = zmq.Poller()
        for source in sources:
            self._poller.register(source, zmq.POLLIN)

    def wait(self, seconds: float) -> None:
        """Return at the first event, or after `seconds` (rounded up to a millisecond, so that deadlines have
        passed).
        """
        self._poller.poll(max(0, int(seconds * 1000 + 0.999)))
