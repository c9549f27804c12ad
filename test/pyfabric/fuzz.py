"""Random operations on engines that write to each other: register, write, cancel, revoke, reconnect, close ("kill").

    python test/pyfabric/fuzz.py tcp|mapped|shm [--operations 1000000] [--seed 1] [--seconds 600]

Checks, all along: every program ends exactly once; pages of a program that is done hold the source's bytes, its slot
has the exact weight; pages that were freed (drained, failed, or fenced by a revoke: at once) keep what their next owner
put there; nothing is left behind. Prints what it did as JSON.
"""

import argparse
import json
import os
import random
import select
import time
from collections import Counter as Count
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from fabric_kit import POISON, noise, poisoned, register, shared

from pyfabric import (
    Counter,
    Engine,
    Lane,
    MemoryRegion,
    Program,
    ProgramDone,
    ProgramDrained,
    ProgramFailed,
    RemoteRegion,
    SlotComplete,
)

ENGINES, PAGES, PAGE_BYTES, SLOTS, OPEN = 3, 192, 512, 256, 48
DEADLINE_S = 2.0
NOW = np.zeros(1, np.uint64)
ORIGIN = np.zeros(1, np.uint64)


@dataclass(slots=True)
class Flight:
    """A program that has not ended. `fenced`: its pages and slot have a new owner already."""

    target: "Node"
    life: int
    source_pages: list[int]
    pages: list[int]
    slot: int
    fenced: bool = False


@dataclass(slots=True)
class Node:
    """An engine with a source pool, a destination pool and what the latter must hold."""

    name: str
    provider: str
    seed: int
    life: int = 0
    engine: Engine = field(init=False)
    source: np.ndarray = field(init=False)
    pool: np.ndarray = field(init=False)
    want: np.ndarray = field(init=False)
    region: MemoryRegion = field(init=False)
    target: MemoryRegion = field(init=False)
    counter: Counter = field(init=False)
    free: set[int] = field(init=False)
    slots: list[int] = field(init=False)
    full: set[int] = field(init=False)
    """Slots whose SlotComplete has come."""
    grants: dict[str, RemoteRegion] = field(init=False)
    peers: dict[str, int] = field(init=False)
    flights: dict[int, Flight] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.source = noise(PAGES * PAGE_BYTES, self.seed)
        self.open()

    def open(self) -> None:
        self.life += 1
        self.engine = Engine(provider=self.provider, slots=SLOTS, post_deadline_s=DEADLINE_S)
        self.pool = poisoned(PAGES * PAGE_BYTES)
        self.want = self.pool.copy()
        self.region, self.target = register(self.engine, self.source), register(self.engine, self.pool)
        self.counter = self.engine.counter()
        self.free, self.slots = set(range(PAGES)), list(range(SLOTS))
        self.full, self.grants, self.peers = set(), {}, {}
        self.engine.start()

    def page(self, array: np.ndarray, pages: list[int]) -> np.ndarray:
        return array.reshape(PAGES, PAGE_BYTES)[pages]

    def clean(self, pages: list[int]) -> None:
        """The next owner's bytes: whatever lands here from now on is a fault."""
        for array in (self.pool, self.want):
            array.reshape(PAGES, PAGE_BYTES)[pages] = POISON
        self.free.update(pages)


class Fuzz:
    """The state of one run."""

    def __init__(self, provider: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.nodes = [Node(f"n{i}", provider, seed + i) for i in range(ENGINES)]
        self.done: Count[str] = Count()
        self.pages = 0
        self.ended: deque[tuple[Node, ProgramDone | ProgramDrained | ProgramFailed]] = deque()
        # Weights of the operations, most frequent first.
        self.operations = {
            self.write: 700,
            self.cancel: 120,
            self.churn: 60,
            self.verify: 60,
            self.revoke: 40,
            self.reconnect: 20,
            self.kill: 0.2,
        }

    def step(self) -> None:
        (operation,) = self.rng.choices(list(self.operations), list(self.operations.values()))
        operation()
        self.done[operation.__name__] += 1
        if self.rng.random() < 0.1:
            self.poll()

    def pair(self) -> tuple[Node, Node]:
        first, second = self.rng.sample(self.nodes, 2)
        return first, second

    def write(self) -> None:
        writer, reader = self.pair()
        count = self.rng.randint(1, 8)
        while len(writer.flights) >= OPEN or len(reader.free) < count or not reader.slots:
            self.poll(0.001)
        if writer.name not in reader.grants:
            reader.grants[writer.name] = reader.target.grant(writer.name, writer.engine.address)
        if reader.name not in writer.peers:
            writer.peers[reader.name] = writer.engine.connect(reader.engine.address)
        pages = self.rng.sample(sorted(reader.free), count)
        taken = [self.rng.randrange(PAGES) for _ in pages]
        slot = reader.slots.pop(self.rng.randrange(len(reader.slots)))
        reader.engine.expect(slot, count)
        reader.free.difference_update(pages)
        lane = Lane(
            writer.region,
            writer.peers[reader.name],
            reader.grants[writer.name],
            ORIGIN,
            ORIGIN,
            PAGE_BYTES,
            PAGE_BYTES,
            0,
            0,
            PAGE_BYTES,
            np.array(taken, np.int32),
            np.array(pages, np.int32),
        )
        later = self.rng.random() < 0.3
        thresholds = np.array([writer.counter.value + 1], np.uint64) if later else NOW
        handle = writer.engine.arm(Program(writer.counter, thresholds, slot, (lane,)))
        writer.flights[handle] = Flight(reader, reader.life, taken, pages, slot)
        self.pages += count
        if self.rng.random() < 0.5:
            writer.counter.add()

    def cancel(self) -> None:
        writer = self.rng.choice(self.nodes)
        if writer.flights:
            writer.engine.cancel(self.rng.choice(list(writer.flights)))

    def churn(self) -> None:
        """A region that comes and goes, with a grant."""
        node = self.rng.choice(self.nodes)
        memory = shared(4096)
        region = register(node.engine, memory)
        region.grant("someone")
        if self.rng.random() < 0.5:
            region.revoke("someone")
        region.close()

    def revoke(self) -> None:
        self.fence(*self.pair())

    def fence(self, writer: Node, reader: Node) -> None:
        reader.target.revoke(writer.name)
        reader.grants.pop(writer.name, None)
        for flight in writer.flights.values():
            if flight.target is reader and not flight.fenced:
                flight.fenced = True
                if flight.life == reader.life:
                    self.release(flight)

    def reconnect(self) -> None:
        writer, reader = self.pair()
        peer = writer.peers.pop(reader.name, None)
        if peer is not None:
            writer.engine.disconnect(peer)

    def kill(self) -> None:
        """Closes an engine under everyone's feet and opens another in its place."""
        node = self.rng.choice(self.nodes)
        node.engine.close()
        self.poll()
        assert not node.flights, "a closed engine owes no events"
        node.open()
        for other in self.nodes:
            other.peers.pop(node.name, None)
            if other is not node:
                other.target.revoke(node.name)
                other.grants.pop(node.name, None)

    def verify(self) -> None:
        node = self.rng.choice(self.nodes)
        pages = sorted(node.free)
        assert np.array_equal(node.page(node.pool, pages), node.page(node.want, pages)), "bytes landed in freed pages"

    def release(self, flight: Flight) -> None:
        self.take(flight.target)  # its slot may have filled up
        flight.target.full.discard(flight.slot)
        weight = flight.target.engine.forget(flight.slot)
        assert weight <= len(flight.pages), f"counted {weight} of {len(flight.pages)}"
        flight.target.slots.append(flight.slot)
        flight.target.clean(flight.pages)

    def poll(self, seconds: float = 0.0) -> None:
        if seconds:
            select.select([node.engine for node in self.nodes], [], [], seconds)
            for node in self.nodes:
                node.counter.add()
        for node in self.nodes:
            self.take(node)
        self.end_all()

    def end_all(self) -> None:
        while self.ended:
            self.end(*self.ended.popleft())

    def take(self, node: Node) -> None:
        for event in node.engine.poll():
            if isinstance(event, SlotComplete):
                node.full.add(event.slot)
            elif isinstance(event, ProgramDone | ProgramDrained | ProgramFailed):
                self.ended.append((node, event))

    def end(self, writer: Node, event: ProgramDone | ProgramDrained | ProgramFailed) -> None:
        self.done[type(event).__name__] += 1
        flight = writer.flights.pop(event.handle)  # KeyError: it ended twice
        reader = flight.target
        if flight.fenced or flight.life != reader.life:
            return
        if isinstance(event, ProgramFailed):
            # Nothing is in flight at the sender, but a cut connection may have left bytes at the receiver: fence first.
            self.fence(writer, reader)
        if not isinstance(event, ProgramDone):
            self.release(flight)
            return
        sent = writer.page(writer.source, flight.source_pages)
        assert np.array_equal(reader.page(reader.pool, flight.pages), sent), "delivered bytes differ"
        # Delivered, though the receiver's loop may have yet to read the immediate.
        limit = time.monotonic() + 10
        while flight.slot not in reader.full:
            assert time.monotonic() < limit, "a delivered write was not counted"
            self.take(reader)
        reader.full.remove(flight.slot)
        weight = reader.engine.forget(flight.slot)
        assert weight == len(flight.pages), f"counted {weight} of {len(flight.pages)}"
        reader.slots.append(flight.slot)
        reader.clean(flight.pages)

    def finish(self) -> None:
        limit = time.monotonic() + 30
        while any(node.flights for node in self.nodes):
            self.poll(0.01)
            assert time.monotonic() < limit, f"programs that never ended: {[node.flights for node in self.nodes]}"
        for _ in range(3 * ENGINES):
            self.verify()
        for node in self.nodes:
            assert node.engine.stats().in_flight == 0
            node.engine.close()


def footprint() -> tuple[int, int, int]:
    """Descriptors, threads and shared-memory files of this process."""
    files = [path for path in Path("/dev/shm").glob("pyfabric-*") if f"-{os.getpid()}-" in path.name]
    return len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir())), len(files)


def run(provider: str, operations: int, seed: int, seconds: float = float("inf")) -> dict[str, int | float | str]:
    before = footprint()
    started = time.monotonic()
    fuzz = Fuzz(provider, seed)
    for _ in range(operations):
        fuzz.step()
        if time.monotonic() - started > seconds:
            break
    fuzz.finish()
    ran = sum(n for name, n in fuzz.done.items() if not name.startswith("Program"))
    pages = fuzz.pages
    done = dict(fuzz.done)
    fuzz.nodes.clear()
    del fuzz
    after = footprint()
    assert after[1:] == before[1:], f"left behind: {before} -> {after}"
    took = round(time.monotonic() - started, 1)
    return {"provider": provider, "seed": seed, "operations": ran, "page_writes": pages, "seconds": took, **done}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "provider", choices=["tcp", "shm", "mapped"], help="shm crashes in libfabric 2.5.1, see docs/pyfabric.md"
    )
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    args = parser.parse_args()
    print(json.dumps(run(args.provider, args.operations, args.seed, args.seconds)))


if __name__ == "__main__":
    main()
