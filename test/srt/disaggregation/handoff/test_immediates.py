"""The bit split of an immediate, and the slots that it names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang.srt.disaggregation.handoff.immediates import MAX_SLOTS, MAX_WEIGHT, decode, encode
from sglang.srt.disaggregation.handoff.ledger import TransferSlots
from sglang.srt.errors import EngineError


@given(st.integers(0, MAX_SLOTS - 1), st.integers(1, MAX_WEIGHT))
def test_decode_inverts_encode_within_32_bits(slot: int, weight: int) -> None:
    immediate = encode(slot, weight)
    assert 0 <= immediate < 1 << 32 and decode(immediate) == (slot, weight)


@pytest.mark.parametrize(("slot", "weight"), [(-1, 1), (MAX_SLOTS, 1), (0, 0), (0, MAX_WEIGHT + 1)])
def test_what_does_not_fit_is_refused(slot: int, weight: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        encode(slot, weight)
    with pytest.raises(ValueError, match="32 bits"):
        decode(1 << 32)


def test_the_slot_freed_last_is_reused_last() -> None:
    slots = TransferSlots(3)
    first, second = slots.take(), slots.take()
    slots.give(first)
    assert slots.take() not in (first, second)
    assert slots.used == 2
    assert slots.take() == first
    with pytest.raises(EngineError, match="in use"):
        slots.take()


def test_a_slot_cannot_be_given_back_twice() -> None:
    slots = TransferSlots(2)
    slots.give(slots.take())
    with pytest.raises(EngineError, match="twice"):
        slots.give(0)
    with pytest.raises(EngineError, match="twice"):
        slots.give(7)
