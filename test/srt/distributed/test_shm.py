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
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.distributed._shm import Aborted, Group, Mailbox, Rounds
from sglang.srt.distributed.shared_group import spin_ns
from sglang.srt.distributed.shm_collectives import ShmCollectives

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
            jobs = [
                threads.submit(work, rank, ShmCollectives(group, rank, size)) for rank, group in enumerate(self.groups)
            ]
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


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[int, int, list[list[int]]]:
    """(ranks, width of a row in float32, counts of several exchanges); up to three slots of rows from one rank."""
    size, width = draw(st.integers(1, 4)), draw(st.sampled_from([1, 3, 700, SLOT // 4]))
    most = max(1, 3 * SLOT // (4 * width) // size)
    count = st.one_of(st.just(0), st.integers(0, 5), st.integers(0, min(most, 20_000)))
    matrix = st.lists(count, min_size=size * size, max_size=size * size)
    return size, width, draw(st.lists(matrix, min_size=1, max_size=3))


@settings(deadline=None, max_examples=60)
@given(exchanges())
def test_every_row_reaches_its_rank_once_and_in_order(case: tuple[int, int, list[list[int]]]) -> None:
    """All-to-all of any counts: empty ranks, rows only to oneself, more rows than a slot holds, one after the other."""
    size, width, matrices = case

    def row(turn: int, sender: int, receiver: int, index: int) -> float:
        return float(turn * 1_000_003 + (sender * size + receiver) * 20_011 + index)

    def work(rank: int, ranks: ShmCollectives) -> list[torch.Tensor]:
        found = []
        for turn, counts in enumerate(matrices):
            mine = [row(turn, rank, to, i) for to in range(size) for i in range(counts[rank * size + to])]
            rows = torch.tensor(mine, dtype=torch.float64).to(torch.float32).unsqueeze(1)
            found.append(ranks.all_to_all(rows.expand(-1, width), counts))
        return found

    for rank, found in enumerate(Ranks(size).run(work)):
        for turn, counts in enumerate(matrices):
            due = [row(turn, a, rank, i) for a in range(size) for i in range(counts[a * size + rank])]
            expected = torch.tensor(due, dtype=torch.float64).to(torch.float32).unsqueeze(1).expand(-1, width)
            assert torch.equal(found[turn], expected)


def test_a_row_longer_than_a_slot_is_refused() -> None:
    with pytest.raises(ValueError, match="a row must fit into a slot"):
        Ranks(1).run(lambda rank, ranks: ranks.all_to_all(torch.zeros(1, SLOT), [1]))


class Party:
    """`size` ranks that step together: a barrier is what a round does."""

    def __init__(self, size: int) -> None:
        self.ranks = Ranks(size)
        self.memory = mmap.mmap(-1, 4096)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.rounds = [Rounds(address=address, nbytes=4096, size=size) for _ in range(size)]
        self.work: list[list[int]] = [[] for _ in range(size)]
        self.done: list[list[int | None]] = [[] for _ in range(size)]

    def live(self, rank: int, ranks: ShmCollectives) -> None:
        """A compute thread."""
        while self.rounds[rank].join():
            job = self.work[rank].pop(0) if self.work[rank] else None
            if self.work[rank]:
                self.rounds[rank].call()
            ranks.barrier()
            self.done[rank].append(job)


def test_work_of_any_rank_takes_all_ranks_along_and_none_is_forgotten() -> None:
    """Submitting races with joining: nothing is left over, and all ranks count the same rounds."""
    party = Party(3)

    def submit(rank: int) -> None:
        for job in range(300 if rank else 1):
            party.work[rank].append(job)
            party.rounds[rank].call()
            if job % 40 == 0:
                time.sleep(0.001)
        while len([job for job in party.done[rank] if job is not None]) < (300 if rank else 1):
            time.sleep(0.001)
        party.rounds[rank].leave()

    with ThreadPoolExecutor(3) as threads:
        submitted = [threads.submit(submit, rank) for rank in range(3)]
        party.ranks.run(party.live)
        for one in submitted:
            one.result(timeout=30)
    assert len({len(done) for done in party.done}) == 1
    for rank in range(3):
        assert [job for job in party.done[rank] if job is not None] == list(range(300 if rank else 1))


def test_rounds_end_when_all_have_left_or_at_once_when_closed() -> None:
    party = Party(2)
    party.rounds[0].leave()
    party.rounds[0].call()
    assert party.rounds[1].join(), "it has left, but others' rounds go on"
    party.rounds[1].leave()
    assert not party.rounds[0].join() and not party.rounds[1].join()
    other = Party(2)
    threading.Timer(0.1, other.rounds[1].close).start()
    assert not other.rounds[0].join()


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
    ranks, given_up = Ranks(3), []

    def work(rank: int, collectives: ShmCollectives) -> None:
        if rank < 2:
            collectives.barrier()
        while ranks.groups[2].progress() != [1, 1, 0]:
            time.sleep(0.001)
        time.sleep(0.1)  # both sleep
        given_up.append(time.monotonic())
        ranks.groups[2].abort()

    with pytest.raises(Aborted):
        ranks.run(work)
    assert 0 < time.monotonic() - given_up[0] < 10
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
