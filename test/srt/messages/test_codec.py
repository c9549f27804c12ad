"""Frames: round trips, bounds, versions, and garbage that never raises anything but WireError."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang.srt.core.sampling import SamplingParams
from sglang.srt.errors import WireError
from sglang.srt.messages.codec import Codec
from sglang.srt.messages.frontend import Abort, Generate, ToScheduler
from sglang.srt.messages.wire import Cancel, ToDecode, ToPrefill

FRONT = Codec[ToScheduler](ToScheduler)


def test_a_message_survives() -> None:
    message = Generate(rid="a", token_ids=(1, 2), sampling=SamplingParams(seed=1 << 62, logit_bias=((3, -1.5),)))
    assert FRONT.decode(FRONT.encode(message)) == message


def test_a_message_of_the_other_direction_is_refused() -> None:
    frame = Codec[ToPrefill](ToPrefill).encode(Cancel(incarnation=1, greeting=0, transfer=1, generation=0))
    with pytest.raises(WireError, match="malformed"):
        Codec[ToDecode](ToDecode).decode(frame)


def test_oversized_frames_are_refused_on_both_ends() -> None:
    small = Codec[ToScheduler](ToScheduler, limit=16)
    with pytest.raises(WireError, match="passes the frame limit"):
        small.encode(Abort(rid="x" * 100))
    with pytest.raises(WireError, match=r"expected 1\.\.16"):
        small.decode(FRONT.encode(Abort(rid="x" * 100)))


def test_an_unknown_version_is_named() -> None:
    with pytest.raises(WireError, match="frame version 9"):
        FRONT.decode(b"\x09" + FRONT.encode(Abort(rid="a"))[1:])


@given(st.binary(max_size=200), st.data())
def test_garbage_and_mutations_raise_wire_errors_only(noise: bytes, data: st.DataObject) -> None:
    frame = bytearray(FRONT.encode(Generate(rid="r", token_ids=(1, 2, 3), sampling=SamplingParams())))
    for byte in noise[:4]:
        frame[data.draw(st.integers(0, len(frame) - 1))] = byte
    for candidate in (noise, bytes(frame), bytes(frame[: len(noise)])):
        with contextlib.suppress(WireError):
            FRONT.decode(candidate)
