"""Collectives of ranks on one machine, over memory that all of them have mapped.

Measured with benchmark/tp_overhead.py: gloo's all-reduce takes tens to thousands of times a futex barrier's time on a
machine with fewer cores than ranks, and it cannot be told to give up (docs/adr/shared-memory-collectives.md).
"""

import torch

from sglang.srt.distributed import _shm

SLOT_BYTES = 4 << 20
"""A longer operation goes in parts, two barriers each. Memory that no operation needed is never touched."""
SPIN_NS = 20_000
"""How long a barrier is polled where every rank has a core: about what a futex's sleep and wake cost."""
ELEMENTS = {torch.float32: _shm.Element.f32, torch.bfloat16: _shm.Element.bf16, torch.int64: _shm.Element.i64}
"""What can be added up."""


def spin_ns(ranks: int, cores: int) -> int:
    """How long to poll: not at all where a poller would take the core of the rank that it waits for."""
    return SPIN_NS if cores > ranks else 0


def group_bytes(size: int) -> int:
    """Memory that a group of `size` ranks exchanges through; whole pages."""
    return -(-_shm.Group.needed(size, SLOT_BYTES) // 4096) * 4096


class ShmCollectives:
    """The Collectives of one rank. Operations raise `_shm.Aborted` once somebody has given the group up."""

    def __init__(self, group: _shm.Group, size: int) -> None:
        self._group = group
        self._size = size

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.contiguous()
        self._group.all_reduce(tensor.data_ptr(), tensor.numel(), ELEMENTS[tensor.dtype])
        return tensor

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.contiguous()
        width = tensor.shape[-1]
        rows, row_bytes = tensor.numel() // width, width * tensor.element_size()
        joined = tensor.new_empty(*tensor.shape[:-1], self._size * width)
        self._group.all_gather(tensor.data_ptr(), rows, row_bytes, joined.data_ptr())
        return joined

    def broadcast(self, tensor: torch.Tensor) -> None:
        assert tensor.is_contiguous()
        self._group.broadcast(tensor.data_ptr(), tensor.nbytes, 0)

    def barrier(self) -> None:
        self._group.barrier()
