"""Collectives of ranks on one machine, over memory that all of them have mapped.

Measured with benchmark/tp_overhead.py: gloo's all-reduce takes tens to thousands of times a futex barrier's time on a
machine with fewer cores than ranks, and it cannot be told to give up (docs/adr/shared-memory-collectives.md).
"""

from collections.abc import Sequence

import torch

from sglang.srt.distributed import _shm

ELEMENTS = {torch.float32: _shm.Element.f32, torch.bfloat16: _shm.Element.bf16, torch.int64: _shm.Element.i64}
"""What can be added up."""


class ShmCollectives:
    """The Collectives of one rank. Operations raise `_shm.Aborted` once somebody has given the group up."""

    def __init__(self, group: _shm.Group, rank: int, size: int) -> None:
        self._group = group
        self._rank = rank
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

    def all_to_all(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        rows = rows.contiguous()
        rank, width = self._rank, rows.shape[1]
        arriving = sum(counts[sender * self._size + rank] for sender in range(self._size))
        received = rows.new_empty(arriving, width)
        self._group.all_to_all(rows.data_ptr(), width * rows.element_size(), list(counts), received.data_ptr())
        return received

    def broadcast(self, tensor: torch.Tensor) -> None:
        assert tensor.is_contiguous()
        self._group.broadcast(tensor.data_ptr(), tensor.nbytes, 0)

    def barrier(self) -> None:
        self._group.barrier()
