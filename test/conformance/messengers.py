"""Pairs of messengers, one writer and one reader, behind one interface: loopback and every fabric provider."""

import ctypes
import fcntl
import mmap
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from sglang.srt.core.layout import KVLayout, ShardLayout
from sglang.srt.core.ports import KVMessenger, MessengerEvent
from sglang.srt.disaggregation.handoff.immediates import WEIGHT_BITS
from sglang.srt.disaggregation.messenger.fabric import FabricMessenger, PoolMemory
from sglang.srt.disaggregation.messenger.loopback import LoopbackMessenger, LoopbackNetwork

LAYERS = 3
WAIT_S = 20.0


def layout(pages: int, page_size: int = 4, head_dim: int = 8) -> ShardLayout:
    """A small MLA layout, 128 bytes a page at the defaults."""
    kv = KVLayout(
        kind="mla", layers=LAYERS, page_size=page_size, kv_heads=1, head_dim=head_dim, dtype="float32", model="test"
    )
    return ShardLayout(kv=kv, tp_size=1, num_pages=pages)


class Side(Protocol):
    """One engine's messenger and its memory."""

    messenger: KVMessenger
    memory: bytearray | mmap.mmap
    layout: ShardLayout

    def bump(self, layers: int) -> None: ...

    def wait(self, wanted: Callable[[MessengerEvent], bool]) -> MessengerEvent: ...


class _Side:
    def __init__(
        self, messenger: KVMessenger, memory: bytearray | mmap.mmap, shape: ShardLayout, bump: Callable[[int], None]
    ) -> None:
        self.messenger = messenger
        self.memory = memory
        self.layout = shape
        self.bump = bump
        self.events: list[MessengerEvent] = []
        self.pump: Callable[[], object] = lambda: time.sleep(0.0005)

    def wait(self, wanted: Callable[[MessengerEvent], bool]) -> MessengerEvent:
        """The next event that is wanted; fails after WAIT_S."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            self.events += self.messenger.poll()
            for event in self.events:
                if wanted(event):
                    self.events.remove(event)
                    return event
            self.pump()
        raise AssertionError(f"no such event within {WAIT_S} s; have {self.events}")


def loopback_side(network: LoopbackNetwork, name: str, shape: ShardLayout, seed: int) -> _Side:
    memory = bytearray(random.Random(seed).randbytes(shape.region_bytes(0)))
    messenger = LoopbackMessenger(network, name, memory, shape)
    side = _Side(messenger, memory, shape, messenger.bump)
    side.pump = network.pump
    return side


def _memfd(nbytes: int) -> int:
    """Memory that every provider takes, also the one that passes it to the other side."""
    descriptor = os.memfd_create("conformance", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, nbytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


def fabric_side(provider: str, shape: ShardLayout, seed: int) -> _Side:
    descriptor = _memfd(shape.region_bytes(0))
    memory = mmap.mmap(descriptor, shape.region_bytes(0))
    memory[:] = random.Random(seed).randbytes(len(memory))
    messenger = FabricMessenger(provider=provider, node="127.0.0.1", weight_bits=WEIGHT_BITS, slots=64)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    messenger.start([PoolMemory(address, len(memory), descriptor)], shape)
    os.close(descriptor)  # the engine keeps its own
    return _Side(messenger, memory, shape, messenger.counter.add)


@contextmanager
def pair(kind: str, writer: ShardLayout, reader: ShardLayout, seed: int = 1) -> Iterator[tuple[_Side, _Side]]:
    """(writer, reader) of a kind: "loopback", "tcp", "shm", "mapped"; the reader has granted, the writer connected."""
    if kind == "loopback":
        network = LoopbackNetwork(seed)
        sides = loopback_side(network, "w", writer, seed), loopback_side(network, "r", reader, seed + 1)
    else:
        sides = fabric_side(kind, writer, seed), fabric_side(kind, reader, seed + 1)
    regions = sides[1].messenger.grant("w")
    sides[0].messenger.connect("r", sides[1].messenger.address, regions, reader.num_pages)
    try:
        yield sides
    finally:
        for side in sides:
            side.messenger.close()
