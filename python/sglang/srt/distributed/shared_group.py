"""Sizes of the memory that a group of ranks exchanges through. Without torch: a front end that makes it reads it."""

from sglang.srt.distributed import _shm

SLOT_BYTES = 4 << 20
"""A longer operation goes in parts, two barriers each. Memory that no operation needed is never touched."""
SPIN_NS = 20_000
"""How long a barrier is polled where every rank has a core: about what a futex's sleep and wake cost."""


def spin_ns(ranks: int, cores: int) -> int:
    """How long to poll: not at all where a poller would take the core of the rank that it waits for."""
    return SPIN_NS if cores > ranks else 0


def group_bytes(size: int) -> int:
    """Memory that a group of `size` ranks exchanges through; whole pages."""
    return -(-_shm.Group.needed(size, SLOT_BYTES) // 4096) * 4096
