"""uvicorn's HTTP/1.1 with bounds on requests that do not end.

httptools keeps an unfinished header in memory, however long it is: a client that sent 60 MB of one made the process
grow by 86 MiB and was answered. uvicorn waits for a request for ever: clients that connect and then forget to ask (as
httpx does where a request is cancelled at the wrong moment) took all descriptors of an engine within an hour.
"""

from asyncio import TimerHandle, Transport
from typing import Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_LIMIT = 64 << 10
"""Bytes without an end of the head or a piece of the body; h11, nginx and Apache allow 8 to 64 KiB of headers."""

SILENCE_S = 30.0
"""A head must be whole within this, and a body must go on; nginx and Apache allow 20 to 60 s."""

LAST_S = 0.5
"""What a connection that has not asked yet is given when the server is told to end: its request may be on the wire."""

TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n\r\n"
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\n"
    b"the request's headers pass the limit of 65536 bytes"
)


class BoundedHttp(HttpToolsProtocol):
    """Closes a connection whose head passes HEAD_LIMIT (and one read of the socket, at most 256 KiB), or SILENCE_S."""

    silence_s = SILENCE_S
    _head_bytes = 0
    _part: Literal["nothing", "head", "body"] = "nothing"
    """What of a request has begun to arrive, and is not whole."""
    _due: TimerHandle | None = None
    _last = False
    """The server is told to end: no request after this one."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override] # as uvicorn's own
        """The client may ask."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there any more."""
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of the socket."""
        self._wait()  # until a request is whole
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > HEAD_LIMIT and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        """The parser has seen the first byte of a request."""
        self._part = "head"
        self._wait()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The parser has seen the whole head."""
        self._head_bytes = 0
        self._part = "body"
        super().on_headers_complete()
        if self._last and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """The parser has seen a piece of the body."""
        self._head_bytes = 0
        self._wait_no_more()
        self._wait()
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The parser has seen a whole request."""
        self._head_bytes = 0
        self._part = "nothing"
        self._wait_no_more()
        super().on_message_complete()

    def shutdown(self) -> None:
        """The server is told to end. A first request that was sent before is answered (503), not reset."""
        self._last = True
        if self.cycle is not None:
            super().shutdown()
            return
        self._wait_no_more()
        self._due = self.loop.call_later(LAST_S, self._give_up)

    def _wait(self) -> None:
        if self._due is None and not self.transport.is_closing():
            self._due = self.loop.call_later(self.silence_s, self._give_up)

    def _wait_no_more(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _give_up(self) -> None:
        self._due = None
        answering = self.cycle is not None and not self.cycle.response_complete
        if self.pipeline or (answering and self._part != "body"):
            self._wait()  # an earlier request is still answered, and its client may not be heard meanwhile
            return
        if self._part == "head":
            self.transport.write(TOO_LATE)
        self.transport.close()
