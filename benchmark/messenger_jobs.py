"""The jobs of messenger.py: scattered pages of one size, and the writes that a raw loop is told to post for them."""

import fcntl
import mmap
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Memory = Literal["small", "huge", "memfd", "memfd-huge"]

LAYERS = 30
JOB_BYTES = 96 << 20
"""Of one job: 20-200 ms, so that A and B of a pair meet the same speed of the machine."""
POOL_BYTES = 2 * JOB_BYTES


@dataclass(frozen=True, slots=True)
class Job:
    """`pages` pages of `page_bytes`, `LAYERS` times; layer l starts at l * layer_bytes of either pool."""

    page_bytes: int
    source: NDArray[np.int32]
    destination: NDArray[np.int32]

    @property
    def layer_bytes(self) -> int:
        return POOL_BYTES // LAYERS // self.page_bytes * self.page_bytes

    @property
    def nbytes(self) -> int:
        return LAYERS * len(self.source) * self.page_bytes

    def writes(self, extents: int, *, merge: bool) -> Iterator[list[tuple[int, int, int]]]:
        """One layer's (source, destination, nbytes) extents, `extents` a write; merge: a run of pages is one extent."""
        found: list[list[int]] = []
        for s, d in zip(self.source.tolist(), self.destination.tolist(), strict=True):
            last = found[-1] if found else None
            if merge and last and s == last[0] + last[2] and d == last[1] + last[2]:
                last[2] += 1
            else:
                found.append([s, d, 1])
        size = self.page_bytes
        pieces = [(s * size, d * size, n * size) for s, d, n in found]
        return (pieces[i : i + extents] for i in range(0, len(pieces), extents))

    def script(self, form: str, extents: int, *, merge: bool) -> str:
        """The job in the words of native/raw.cpp."""
        lines = [" ".join(f"{s} {d} {n}" for s, d, n in write) + " -1" for write in self.writes(extents, merge=merge)]
        return "\n".join([f"{form} {self.layer_bytes} {LAYERS} {len(lines)}", *lines, ""])


def make_job(page_bytes: int, *, runs: bool, seed: int = 7) -> Job:
    """Scattered over pools twice as large; `runs`: half of the pages in runs of 8 on both sides."""
    rng = random.Random(seed)
    count = JOB_BYTES // LAYERS // page_bytes // 16 * 16 or 12
    pool = POOL_BYTES // LAYERS // page_bytes
    if not runs:
        return Job(page_bytes, _array(rng.sample(range(pool), count)), _array(rng.sample(range(pool), count)))
    blocks = pool // 8
    long = max(1, count // 16)
    sides = []
    for _ in range(2):
        order = rng.sample(range(blocks), blocks)
        tail = [block * 8 + i for block in order[long:] for i in range(8)]
        pages = [block * 8 + i for block in order[:long] for i in range(8)]
        sides.append(_array(pages + rng.sample(tail, max(0, count - len(pages)))))
    return Job(page_bytes, *sides)


def _array(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of this process, touched. `fd` is -1 for private memory."""

    array: NDArray[np.uint8]
    fd: int

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)


def allocate(kind: Memory, nbytes: int = POOL_BYTES) -> Pool:
    fd = -1
    if kind.startswith("memfd"):
        fd = os.memfd_create("benchmark", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        memory = mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED)
    else:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if kind.endswith("huge"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    array = np.frombuffer(memory, np.uint8)
    array[:] = 1
    return Pool(array, fd)
