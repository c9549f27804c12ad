"""Frames between processes: one version byte, then a msgspec msgpack body. Bounded, and never pickle.

Between machines a CRC-32 stands before the body: a damaged ask would otherwise name other pages. It is no signature.
"""

import zlib
from typing import Generic, TypeVar

import msgspec

from sglang.srt.errors import WireError

T = TypeVar("T")

FRAME_VERSION = 1
DEFAULT_LIMIT = 16 << 20
"""Bytes a frame: a 1M-token prompt of 5-byte ids is 5 MB."""


class Codec(Generic[T]):
    """Encodes and decodes the members of one tagged union."""

    def __init__(self, union: object, *, limit: int = DEFAULT_LIMIT, checked: bool = False) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(union)
        self._limit = limit
        self._checked = checked

    def encode(self, message: T) -> bytes:
        """Raises WireError where the frame would pass the limit: better refused here than dropped there."""
        body = self._encoder.encode(message)
        if len(body) >= self._limit:
            raise WireError(f"{type(message).__name__} of {len(body)} bytes passes the frame limit of {self._limit}")
        check = zlib.crc32(body).to_bytes(4, "little") if self._checked else b""
        return bytes((FRAME_VERSION,)) + check + body

    def decode(self, frame: bytes) -> T:
        """Raises WireError for an empty, oversized, unknown-version, damaged or malformed frame."""
        if not frame or len(frame) > self._limit:
            raise WireError(f"frame of {len(frame)} bytes; expected 1..{self._limit}")
        if frame[0] != FRAME_VERSION:
            raise WireError(f"frame version {frame[0]}; this engine speaks {FRAME_VERSION}")
        body = memoryview(frame)[1:]
        if self._checked:
            check, body = body[:4], body[4:]
            if zlib.crc32(body).to_bytes(4, "little") != check:
                raise WireError("damaged frame: its checksum differs")
        try:
            return self._decoder.decode(body)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
            raise WireError(f"malformed frame: {error}") from error
