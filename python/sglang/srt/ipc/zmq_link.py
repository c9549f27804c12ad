"""The control plane between engines over ZeroMQ: a prefill engine listens (ROUTER), a decode engine dials (DEALER
each).
"""

import re
from collections.abc import Mapping
from typing import Generic, TypeVar

import zmq

from sglang.srt.errors import ConfigError, WireError
from sglang.srt.ipc.curve import ClientKeys, ServerKeys
from sglang.srt.ipc.guard import AllowList, ConnectionEvents
from sglang.srt.messages.codec import Codec

In = TypeVar("In")
Out = TypeVar("Out")

NAME = re.compile(rb"[A-Za-z0-9_.:@/\[\]-]{1,128}")
"""What an engine id may look like; anything else on the wire is dropped."""

QUEUE = 1024
"""Control messages a peer; a stuck peer loses messages, which its heartbeats and deadlines make good."""

CONTROL_LIMIT = 8 << 20
"""Bytes a control frame: a prompt of 1M tokens and its pages."""

BURST = 4096
"""Frames taken in one poll at most, so that a flood cannot hold the scheduler's loop."""


def _socket(context: "zmq.Context[zmq.Socket[bytes]]", kind: int) -> "zmq.Socket[bytes]":
    socket = context.socket(kind)
    for option, value in (
        (zmq.LINGER, 0),
        (zmq.SNDHWM, QUEUE),
        (zmq.RCVHWM, QUEUE),
        (zmq.MAXMSGSIZE, CONTROL_LIMIT),
        (zmq.HANDSHAKE_IVL, 2000),
    ):
        socket.setsockopt(option, value)
    return socket


LAST_WORDS_MS = 200
"""How long a dialler's close waits for the listener to take its farewell."""


def control_codec(union: object) -> Codec[In]:
    """A codec whose frames the other end takes, and knows when they are damaged."""
    return Codec(union, limit=CONTROL_LIMIT, checked=True)


class ListenLink(Generic[In, Out]):
    """The listening end; peers are known by the ZeroMQ identity that they set."""

    def __init__(
        self, address: str, *, incoming: Codec[In], outgoing: Codec[Out], keys: ServerKeys | None = None
    ) -> None:
        """With `keys`, only engines on its list get in. Raises ConfigError where the address cannot be bound."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._guard = None if keys is None else AllowList(self._context, keys.allowed)
        self.socket = _socket(self._context, zmq.ROUTER)
        if keys is not None:
            self.socket.setsockopt(zmq.CURVE_SERVER, 1)
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.own.public)
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, keys.own.secret)
            self.socket.setsockopt(zmq.ZAP_DOMAIN, b"control")
        self._events = ConnectionEvents(self.socket)
        # A restarted engine dials under its old name while the dead connection still exists.
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        # Without this, a message for a peer that is gone would be dropped in silence.
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(f"cannot listen on {address}: {error.strerror} (--disagg-bootstrap-port)") from error
        self._incoming = incoming
        self._outgoing = outgoing
        self.malformed = 0

    @property
    def sockets(self) -> list["zmq.Socket[bytes]"]:
        """For a ZmqWaiter."""
        return [self.socket] if self._guard is None else [self.socket, self._guard.socket]

    def send(self, peer: str, message: Out) -> bool:
        """Raises WireError for a message that no frame can hold."""
        try:
            self.socket.send_multipart([peer.encode(), self._outgoing.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def poll(self) -> list[tuple[str, In]]:
        if self._guard is not None:
            self._guard.poll()
        self._events.poll()
        messages: list[tuple[str, In]] = []
        for _ in range(BURST):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            message = self._decode(frames)
            if message is None:
                self.malformed += 1
            else:
                messages.append(message)
        return messages

    def _decode(self, frames: list[bytes]) -> tuple[str, In] | None:
        if len(frames) != 2 or not NAME.fullmatch(frames[0]):
            return None
        try:
            return frames[0].decode("ascii"), self._incoming.decode(frames[1])
        except WireError:
            return None

    def counters(self) -> dict[str, float]:
        refused = self._events.refused
        return {"control_frames_malformed_total": self.malformed, "control_handshakes_refused_total": refused}

    def close(self) -> None:
        if not self.socket.closed:
            self._events.close()
            self.socket.close()
            if self._guard is not None:
                self._guard.close()
            self._context.term()


class DialLink(Generic[In, Out]):
    """The dialling end; a peer's name is the host:port that was dialled. ZeroMQ reconnects by itself."""

    def __init__(
        self,
        addresses: Mapping[str, str],
        *,
        identity: str,
        incoming: Codec[In],
        outgoing: Codec[Out],
        keys: ClientKeys | None = None,
    ) -> None:
        """`addresses`: peer name -> ZeroMQ address. Raises ConfigError for an address that cannot be dialled."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._incoming = incoming
        self._outgoing = outgoing
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self.malformed = 0
        for name in addresses:
            socket = _socket(self._context, zmq.DEALER)
            socket.setsockopt(zmq.IDENTITY, identity.encode())
            # Queue for live connections only: an ask must not wait for an engine's next life.
            socket.setsockopt(zmq.IMMEDIATE, 1)
            socket.setsockopt(zmq.RECONNECT_IVL, 100)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
            self._sockets[name] = socket
            if keys is not None:
                socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server)
                socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.own.public)
                socket.setsockopt(zmq.CURVE_SECRETKEY, keys.own.secret)
        self._events = {name: ConnectionEvents(socket) for name, socket in self._sockets.items()}
        self._hung_up: list[str] = []
        for name, address in addresses.items():
            try:
                self._sockets[name].connect(address)
            except zmq.ZMQError as error:
                self.close()
                raise ConfigError(f"--disagg-prefill {name}: {error.strerror}") from error

    @property
    def sockets(self) -> list["zmq.Socket[bytes]"]:
        """For a ZmqWaiter."""
        return [*self._sockets.values(), *(events.monitor for events in self._events.values())]

    def send(self, peer: str, message: Out) -> bool:
        """Raises WireError for a message that no frame can hold."""
        try:
            self._sockets[peer].send(self._outgoing.encode(message), zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def poll(self) -> list[tuple[str, In]]:
        self._hung_up += [name for name, events in self._events.items() if events.poll()]
        messages: list[tuple[str, In]] = []
        for name, socket in self._sockets.items():
            for _ in range(BURST):
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                try:
                    messages.append((name, self._incoming.decode(b"".join(frames[-1:]))))
                except WireError:
                    self.malformed += 1
        return messages

    def hung_up(self) -> list[str]:
        names, self._hung_up = self._hung_up, []
        return names

    def counters(self) -> dict[str, float]:
        refused = sum(events.refused for events in self._events.values())
        return {"control_frames_malformed_total": self.malformed, "control_handshakes_refused_total": refused}

    def close(self) -> None:
        if not self._context.closed:
            for events in self._events.values():
                events.close()
            for socket in self._sockets.values():
                socket.close(LAST_WORDS_MS)
            self._context.term()
