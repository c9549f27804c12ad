"""The 32 bits that travel with a write: the decode engine's counting slot, and how many page extents the write carried.

This file alone knows the split. EFA and verbs carry no more than 32 bits (man fi_cq: cq_data_size 4).
"""

WEIGHT_BITS = 16
"""Extents a write, at most 65,535; a coalesced write larger than that is posted as several."""

SLOT_BITS = 32 - WEIGHT_BITS
MAX_SLOTS = 1 << SLOT_BITS
MAX_WEIGHT = (1 << WEIGHT_BITS) - 1


def encode(slot: int, weight: int) -> int:
    """The immediate of a write; raises ValueError for a slot or weight that does not fit."""
    if not 0 <= slot < MAX_SLOTS:
        raise ValueError(f"slot {slot} outside 0..{MAX_SLOTS - 1}")
    if not 1 <= weight <= MAX_WEIGHT:
        raise ValueError(f"weight {weight} outside 1..{MAX_WEIGHT}")
    return slot << WEIGHT_BITS | weight


def decode(immediate: int) -> tuple[int, int]:
    """(slot, weight) of an immediate; raises ValueError for more than 32 bits."""
    if not 0 <= immediate < 1 << 32:
        raise ValueError(f"immediate {immediate:#x} has more than 32 bits")
    return immediate >> WEIGHT_BITS, immediate & MAX_WEIGHT
