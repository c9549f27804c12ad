"""Shared by the pyfabric tests and by the processes they start: engines, poisoned pools, programs, event waits."""

import fcntl
import mmap
import os
import select
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import UnionType

import numpy as np

from pyfabric import Counter, Engine, Event, Lane, MemoryRegion, Program, RemoteRegion, SlotComplete

POISON = 0xEE
WAIT_S = 20.0


@dataclass(slots=True)
class Side:
    """An engine, and every event it has handed out."""

    engine: Engine
    seen: list[Event] = field(default_factory=list)

    def wait(self, kind: type | UnionType, *, count: int = 1, seconds: float = WAIT_S) -> list[Event]:
        """The first `count` events of a kind, or of one of several. Fails when they do not come in time."""
        limit = time.monotonic() + seconds
        while True:
            found = [event for event in self.seen if isinstance(event, kind)]
            if len(found) >= count:
                return found
            left = limit - time.monotonic()
            assert left > 0, f"no {kind} within {seconds} s; seen {self.seen}, {self.engine.stats()}"
            select.select([self.engine], [], [], left)
            self.seen += self.engine.poll()

    def settle(self, seconds: float) -> list[Event]:
        """Whatever comes in the given time."""
        limit = time.monotonic() + seconds
        while (left := limit - time.monotonic()) > 0:
            select.select([self.engine], [], [], left)
            self.seen += self.engine.poll()
        return self.seen


_FILES: dict[int, int] = {}  # address of a shared array -> its memfd


def _close(address: int, fd: int) -> None:
    del _FILES[address]
    os.close(fd)


def shared(nbytes: int) -> np.ndarray:
    """Memory that a peer can be given a descriptor of, as a KV pool is for provider "mapped"."""
    fd = os.memfd_create("pyfabric-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    array = np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
    address = array.ctypes.data
    _FILES[address] = fd
    weakref.finalize(array, _close, address, fd)
    return array


def register(engine: Engine, array: np.ndarray) -> MemoryRegion:
    return engine.register(array.ctypes.data, array.nbytes, fd=_FILES.get(array.ctypes.data, -1))


def noise(nbytes: int, seed: int = 1) -> np.ndarray:
    """Bytes that are never the poison."""
    data = shared(nbytes)
    data[:] = np.random.default_rng(seed).integers(0, 255, nbytes, dtype=np.uint8)
    data[data == POISON] = 0
    return data


def poisoned(nbytes: int) -> np.ndarray:
    return np.full(nbytes, POISON, np.uint8)


@dataclass(frozen=True, slots=True)
class Shape:
    """Page geometry of one lane, equal for source and destination unless said otherwise."""

    layers: int = 3
    pages: int = 16
    page_bytes: int = 4096
    nbytes: int = 4096
    source_offset: int = 0
    destination_offset: int = 0

    @property
    def total(self) -> int:
        return self.layers * self.pages * self.page_bytes

    def layer_offsets(self) -> np.ndarray:
        return np.arange(self.layers, dtype=np.uint64) * np.uint64(self.pages * self.page_bytes)


def lane(
    shape: Shape, source: MemoryRegion, peer: int, target: RemoteRegion, take: Sequence[int], put: Sequence[int]
) -> Lane:
    return Lane(
        source=source,
        peer=peer,
        destination=target,
        source_layers=shape.layer_offsets(),
        destination_layers=shape.layer_offsets(),
        source_page_bytes=shape.page_bytes,
        destination_page_bytes=shape.page_bytes,
        source_offset=shape.source_offset,
        destination_offset=shape.destination_offset,
        nbytes=shape.nbytes,
        source_pages=np.array(take, np.int32),
        destination_pages=np.array(put, np.int32),
    )


def program(counter: Counter, shape: Shape, slot: int, *lanes: Lane) -> Program:
    return Program(counter, np.arange(1, shape.layers + 1, dtype=np.uint64), slot, lanes)


def expected(shape: Shape, source: np.ndarray, take: Sequence[int], put: Sequence[int]) -> np.ndarray:
    """What a poisoned pool must hold afterwards: numpy's own copy of the same extents."""
    out = poisoned(shape.total)
    to = out.reshape(shape.layers, shape.pages, shape.page_bytes)
    pages = source.reshape(shape.layers, shape.pages, shape.page_bytes)
    here, there, size = shape.source_offset, shape.destination_offset, shape.nbytes
    for a, b in zip(take, put, strict=True):
        to[:, b, there : there + size] = pages[:, a, here : here + size]
    return out


def wait_slot(side: Side, slot: int) -> None:
    count = 1
    while not any(isinstance(e, SlotComplete) and e.slot == slot for e in side.wait(SlotComplete, count=count)):
        count += 1
