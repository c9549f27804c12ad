"""Server-sent events out of a byte stream that may be cut anywhere."""

from collections.abc import Iterator


class EventParser:
    """Feed bytes, get the data of each complete event.

    Lines may end in LF or CRLF; comments and other fields are skipped; several data lines of an event are joined by a
    newline. Bytes are decoded line by line, so a cut inside a UTF-8 character does no harm.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, data: bytes) -> Iterator[str]:
        """The events that `data` completes. Raises UnicodeDecodeError on a line that is not UTF-8."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" ").decode())
            elif not line and self._data:
                yield "\n".join(self._data)
                self._data = []
