"""Who may open a control connection: answers to ZeroMQ's authentication questions, and a count of those turned away."""

from collections.abc import Collection, Sequence

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


class HandshakeCount:
    """Counts connections that failed to shake hands: no key, a wrong one, another mechanism, or noise."""

    def __init__(self, sockets: "Sequence[zmq.Socket[bytes]]") -> None:
        self._sockets = sockets
        self._monitors = [socket.get_monitor_socket(FAILURES) for socket in sockets]
        self.refused = 0

    def poll(self) -> None:
        """Count what happened since the last call."""
        for monitor in self._monitors:
            while True:
                try:
                    frames = monitor.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                if parse_monitor_message(frames)["event"] & FAILURES:
                    self.refused += 1

    def close(self) -> None:
        """Before the watched sockets are closed."""
        for socket in self._sockets:
            socket.disable_monitor()
        for monitor in self._monitors:
            monitor.close(0)
        self._monitors = []
