"""Who may open a control connection, and which end: answers to ZeroMQ's authentication questions, and what it tells of
connections.
"""

from collections.abc import Collection

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
"""Fixed by ZeroMQ RFC 27."""

FAILURES = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH


class AllowList:
    """Answers the authentication questions (ZAP, RFC 27) of one context, in the loop that polls it."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", allowed: Collection[bytes]) -> None:
        """`allowed`: public CURVE keys in Z85. Must exist before the guarded socket binds."""
        self._allowed = frozenset(z85.decode(key) for key in allowed)
        self.socket = context.socket(zmq.REP)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(ZAP_ENDPOINT)

    def poll(self) -> None:
        """Answer what has been asked."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.socket.send_multipart(self._answer(frames))

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        """Frames: version, request id, domain, address, identity, mechanism, credentials."""
        known = len(frames) == 7 and frames[5] == b"CURVE" and frames[6] in self._allowed
        status = [b"200", b"OK"] if known else [b"400", b"not on the list"]
        return [frames[0], frames[1] if len(frames) > 1 else b"", *status, b"", b""]

    def close(self) -> None:
        """Idempotent."""
        self.socket.close()


ENDED = zmq.EVENT_DISCONNECTED
UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
NOT_TAKEN = zmq.EVENT_CLOSED | FAILURES
"""A dial that came to nothing: refused, or closed before hands were shaken (a proxy whose engine is gone)."""


class ConnectionEvents:
    """What ZeroMQ tells of one socket's connections: handshakes that failed, and a dialled peer that hung up.

    A connection may end although its peer lives; ZeroMQ dials again at once. Only where that comes to nothing, too,
    has the peer hung up. One that is stopped or slow keeps its connection, for the kernel keeps it.
    """

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        """Before `socket` binds or connects. `monitor` is readable when poll() has something to see."""
        self._socket = socket
        self.monitor = socket.get_monitor_socket(ENDED | UP | NOT_TAKEN)
        self.refused = 0
        self._up = self._ended = False

    def poll(self) -> bool:
        """See what happened since the last call; whether the dialled peer has hung up."""
        hung_up = False
        while True:
            try:
                frames = self.monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return hung_up
            hung_up |= self._see(int(parse_monitor_message(frames)["event"]))

    def _see(self, event: int) -> bool:
        self.refused += bool(event & FAILURES)
        if event & UP:
            self._up, self._ended = True, False
        elif event & ENDED and self._up:
            self._up, self._ended = False, True
        elif event & NOT_TAKEN and self._ended:
            self._ended = False
            return True
        return False

    def close(self) -> None:
        """Before the watched socket is closed."""
        self._socket.disable_monitor()
        self.monitor.close(0)
