"""uvicorn's HTTP/1.1 with a bound on what is no body: request line, headers, chunk sizes, trailers.

httptools keeps an unfinished header in memory, however long it is: a client that sent 60 MB of one made the process
grow by 86 MiB and was answered.
"""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_LIMIT = 64 << 10
"""Bytes without an end of the head or a piece of the body; h11, nginx and Apache allow 8 to 64 KiB of headers."""

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: text/plain; charset=utf-8\r\nconnection: close\r\n\r\n"
    b"the request's headers pass the limit of 65536 bytes"
)


class BoundedHttp(HttpToolsProtocol):
    """Closes a connection whose head passes HEAD_LIMIT (and one read of the socket, at most 256 KiB)."""

    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Bytes of the socket."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > HEAD_LIMIT and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        """The parser has seen the whole head."""
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """The parser has seen a piece of the body."""
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The parser has seen a whole request."""
        self._head_bytes = 0
        super().on_message_complete()
