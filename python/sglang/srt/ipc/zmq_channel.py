"""The channel between the HTTP process and the scheduler process: ZeroMQ DEALER to DEALER over a Unix socket."""

from typing import Generic, TypeVar

import zmq

from sglang.srt.errors import EngineError, WireError
from sglang.srt.messages.codec import Codec

In = TypeVar("In")
Out = TypeVar("Out")

QUEUE_BOUND = 100_000
"""Messages a direction. At 64 running requests and 100 steps a second that is over 10 minutes of a stuck reader."""


class ZmqChannel(Generic[In, Out]):
    """A `Channel` over a ZeroMQ socket; sleep on it with a ZmqWaiter."""

    def __init__(self, address: str, *, incoming: Codec[In], outgoing: Codec[Out], bind: bool) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.setsockopt(zmq.SNDHWM, QUEUE_BOUND)
        self._socket.setsockopt(zmq.RCVHWM, QUEUE_BOUND)
        (self._socket.bind if bind else self._socket.connect)(address)
        self._incoming = incoming
        self._outgoing = outgoing
        self.malformed = 0

    def send(self, message: Out) -> None:
        """Raises EngineError where the other end is not there yet, or has not read for QUEUE_BOUND messages."""
        try:
            self._socket.send(self._outgoing.encode(message), zmq.NOBLOCK)
        except zmq.Again as error:
            raise EngineError(f"the other process is not connected, or has not read {QUEUE_BOUND} messages") from error

    def poll(self) -> list[In]:
        messages: list[In] = []
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            try:
                messages.append(self._incoming.decode(frame))
            except WireError:
                self.malformed += 1

    @property
    def socket(self) -> "zmq.Socket[bytes]":
        """For a ZmqWaiter."""
        return self._socket

    def close(self) -> None:
        if not self._socket.closed:
            self._socket.close()
            self._context.term()
