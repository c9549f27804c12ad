"""Collectives and mailbox over shared memory; ranks are threads, for the calls release the GIL."""

import ctypes
import mmap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch

from sglang.srt.distributed._shm import Aborted, Group, Mailbox
from sglang.srt.distributed.shm_collectives import ShmCollectives, spin_ns

T = TypeVar("T")
SLOT = 64 << 10


class Ranks:
    """`size` ranks over fresh memory."""

    def __init__(self, size: int, spin: int = 0) -> None:
        nbytes = Group.needed(size, SLOT)
        self.memory = mmap.mmap(-1, nbytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.groups = [
            Group(address=address, nbytes=nbytes, rank=rank, size=size, spin_ns=spin) for rank in range(size)
        ]

    def run(self, work: Callable[[int, ShmCollectives], T]) -> list[T]:
        """`work` on every rank at once."""
        size = len(self.groups)
        with ThreadPoolExecutor(size) as threads:
            jobs = [threads.submit(work, rank, ShmCollectives(group, size)) for rank, group in enumerate(self.groups)]
            return [job.result(timeout=60) for job in jobs]


def noise(rank: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return torch.randn(shape, generator=generator).mul_(100).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("count", [1, 7, 4096, 8193, 50_000])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_reduce_adds_in_rank_order_on_every_rank(size: int, count: int, dtype: torch.dtype) -> None:
    """Counts below and above one slot, and below and above what one barrier serves."""
    inputs = [noise(rank, (count,), dtype) for rank in range(size)]
    found = Ranks(size).run(lambda rank, ranks: ranks.all_reduce(inputs[rank].clone()))
    wide = [part.float() if dtype is torch.bfloat16 else part for part in inputs]
    expected = wide[0].clone()
    for part in wide[1:]:
        expected += part
    for result in found:
        assert torch.equal(result, expected.to(dtype))


@pytest.mark.parametrize("shape", [(1, 5), (33, 7), (3, 2, 11), (2, 20_000)])
def test_all_gather_joins_the_last_axis(shape: tuple[int, ...]) -> None:
    """(2, 20000) of float32 is a row longer than a slot."""
    inputs = [noise(rank, shape, torch.float32) for rank in range(3)]
    found = Ranks(3).run(lambda rank, ranks: ranks.all_gather_last(inputs[rank]))
    for result in found:
        assert torch.equal(result, torch.cat(inputs, dim=-1))


def test_a_thousand_mixed_operations_never_mix_their_memory() -> None:
    """One barrier an operation is enough only with two banks; a late reader must not see the next operation."""

    def work(rank: int, ranks: ShmCollectives) -> list[float]:
        sums = []
        for index in range(1000):
            if rank == index % 4 and index % 50 == 0:
                time.sleep(0.002)
            part = torch.full((1 + index % 300,), float(rank + index))
            sums.append(float(ranks.all_reduce(part)[-1]))
            token = torch.full((3,), index if rank == 0 else -1)
            ranks.broadcast(token)
            sums.append(float(token[2]))
        return sums

    expected = [value for index in range(1000) for value in (6.0 + 4 * index, float(index))]
    assert Ranks(4).run(work) == [expected] * 4
    assert Ranks(4, spin=5000).run(work) == [expected] * 4


def test_nobody_passes_a_barrier_alone() -> None:
    arrived: list[int] = []

    def work(rank: int, ranks: ShmCollectives) -> int:
        time.sleep(0.05 * rank)
        arrived.append(rank)
        ranks.barrier()
        return len(arrived)

    assert Ranks(3).run(work) == [3, 3, 3]


def test_giving_up_ends_whoever_waits() -> None:
    ranks = Ranks(3)
    threading.Timer(0.2, ranks.groups[2].abort).start()
    started = time.monotonic()

    def work(rank: int, collectives: ShmCollectives) -> None:
        if rank < 2:
            collectives.barrier()

    with pytest.raises(Aborted):
        ranks.run(work)
    assert 0.1 < time.monotonic() - started < 2
    assert ranks.groups[0].progress() == [1, 1, 0], "who did not come is behind"


def test_polling_needs_a_core_a_rank() -> None:
    assert spin_ns(4, 2) == 0 and spin_ns(2, 2) == 0 and spin_ns(2, 4) > 0


class Box:
    """A mailbox of `nbytes` of ring, once for each reader and the writer."""

    def __init__(self, ring: int, readers: int) -> None:
        self.memory = mmap.mmap(-1, ring + 8192)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.ends = [
            Mailbox(address=address, nbytes=ring + 8192, readers=readers, spin_ns=0) for _ in range(readers + 1)
        ]


def test_every_reader_gets_every_message_in_order() -> None:
    box = Box(4096, 3)
    messages = [bytes([index % 251]) * (index % 700) for index in range(2000)]

    def read(reader: int) -> list[bytes]:
        found = []
        while (message := box.ends[reader].receive(reader)) is not None:
            found.append(message)
        return found

    with ThreadPoolExecutor(3) as threads:
        readers = [threads.submit(read, reader) for reader in range(3)]
        for message in messages:
            while not box.ends[3].publish(message):
                time.sleep(0.0005)
        box.ends[3].close()
        assert all(reader.result(timeout=30) == messages for reader in readers)


def test_a_full_mailbox_says_so() -> None:
    box = Box(1024, 2)
    sent = 0
    while box.ends[2].publish(b"x" * 100):
        sent += 1
    assert 5 < sent < 100
    assert box.ends[0].receive(0) == b"x" * 100
    assert not box.ends[2].publish(b"x" * 100), "the other reader has read nothing"
    assert box.ends[1].receive(1) == b"x" * 100
    assert box.ends[2].publish(b"x" * 100)
