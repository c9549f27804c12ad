"""A messenger inside one process, with real bytes and seeded faults: what a fabric may do at its worst, on demand.

Writes travel through a `LoopbackNetwork` that delivers them when `pump()` is called, in an order and with failures
that a seed decides. Memory keys are checked at delivery, as a NIC does, so a revoked key stops writes that were posted
before.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from sglang.srt.core.layout import ShardLayout
from sglang.srt.core.ports import (
    LayerWrites,
    MessengerEvent,
    PageCopies,
    RemoteRegion,
    SlotFilled,
    WritesDone,
    WritesEnded,
)
from sglang.srt.disaggregation.handoff.immediates import MAX_SLOTS, decode, encode
from sglang.srt.errors import EngineError

LATE = 0.02
"""Chance a pump that a write in limbo lands: dozens of turns of a scheduler later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Probabilities a write, between 0 and 1."""

    reorder: float = 0.0
    """Deliver a random write instead of the oldest."""
    fail: float = 0.0
    """Report an error to the sender; the bytes may have landed, may never land, or may land later.

    The last is what a broken TCP connection does: its bytes lie in the receiver's socket when the sender hears of it.
    """
    delay: float = 0.0
    """Leave it for a later pump()."""


@dataclass(slots=True)
class _Program:
    sender: "LoopbackMessenger"
    handle: int
    writes: LayerWrites
    next_layer: int = 0
    flying: int = 0
    cancelled: bool = False
    failed: str = ""
    seen: list[int] = field(default_factory=list)
    posted: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Write:
    program: _Program
    target: str
    key: int
    immediate: int
    offset: int
    start: int
    nbytes: int

    @property
    def data(self) -> bytes:
        """Read at delivery, as a NIC reads: a source page that is reused too early sends its new content."""
        return bytes(self.program.sender.memory[self.start : self.start + self.nbytes])


class LoopbackNetwork:
    """Connects messengers by address and owns what is in flight."""

    def __init__(self, seed: int, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.random = random.Random(seed)
        self.members: dict[str, LoopbackMessenger] = {}
        self.flying: list[_Write] = []
        self.limbo: list[tuple[_Write, bytes]] = []
        """Writes reported as failed whose bytes are still on their way."""
        self.dead: set[str] = set()
        """Addresses whose process was killed: they receive and send nothing."""

    def pump(self, most: int = 1 << 30) -> int:
        """Deliver up to `most` of the writes in flight now; returns how many."""
        delivered = 0
        self._deliver_late()
        for _ in range(min(most, len(self.flying))):
            faults, rng = self.faults, self.random
            index = rng.randrange(len(self.flying)) if rng.random() < faults.reorder else 0
            if rng.random() < faults.delay:
                continue
            self._deliver(self.flying.pop(index))
            delivered += 1
        return delivered

    def _deliver(self, write: _Write) -> None:
        if self.random.random() >= self.faults.fail:
            write.program.sender.landed(write.program, self._land(write, write.data))
            return
        fate = self.random.choice(("landed", "lost", "late"))
        if fate == "landed":
            self._land(write, write.data)
        elif fate == "late":
            self.limbo.append((write, write.data))
        write.program.sender.landed(write.program, "injected failure")

    def _land(self, write: _Write, data: bytes) -> str:
        """Why a write did not land; empty where it did."""
        target = self.members.get(write.target)
        if target is None or write.target in self.dead:
            return "the peer is gone"
        return "" if target.land(write.key, write.offset, data, write.immediate) else "the memory key is not valid"

    def _deliver_late(self) -> None:
        waiting, self.limbo = self.limbo, []
        for write, data in waiting:
            if self.random.random() < LATE:
                self._land(write, data)
            else:
                self.limbo.append((write, data))


class LoopbackMessenger:
    """A `KVMessenger` over a LoopbackNetwork, for one rank's pool in a bytearray."""

    provider = "loopback"

    def __init__(self, network: LoopbackNetwork, name: str, memory: bytearray, layout: ShardLayout) -> None:
        if layout.tp_size != 1 or len(memory) != layout.region_bytes(0):
            raise ValueError("the loopback messenger takes one rank and exactly its region")
        self.memory = memory
        self.bumps = 0
        """The layer counter; tests and fake workers set it through bump()."""
        self.strays = 0
        self._network = network
        self._name = name
        self._layout = layout
        self._keys: dict[int, str] = {}
        self._targets: dict[str, tuple[str, int, int]] = {}
        self._programs: dict[int, _Program] = {}
        self._expected: dict[int, list[int]] = {}
        self._events: list[MessengerEvent] = []
        self._handles = 0
        network.members[name] = self

    @property
    def address(self) -> bytes:
        return self._name.encode()

    def bump(self, layers: int = 1) -> None:
        """The forward finished `layers` more layers; posts what waited for them."""
        self.bumps += layers
        for program in list(self._programs.values()):
            self._advance(program)

    def grant(self, peer: str) -> tuple[RemoteRegion, ...]:
        if peer in self._keys.values():
            raise EngineError(f"{peer} holds a memory key already")
        key = self._network.random.getrandbits(63)
        self._keys[key] = peer
        return (RemoteRegion(rank=0, base=0, key=key, nbytes=len(self.memory)),)

    def locate(self, peer: str, address: bytes) -> None:
        """Keys alone fence here; there are no connections to cut."""

    def revoke(self, peer: str) -> None:
        self._keys = {key: holder for key, holder in self._keys.items() if holder != peer}

    def connect(self, peer: str, address: bytes, regions: Sequence[RemoteRegion], destination_pages: int) -> None:
        self.disconnect(peer)
        try:
            name = address.decode()
        except UnicodeDecodeError as error:
            raise EngineError(f"the fabric address of {peer} is unusable: {error}") from error
        self._targets[peer] = (name, regions[0].key, destination_pages)

    def disconnect(self, peer: str) -> None:
        if self._targets.pop(peer, None) is None:
            return
        for program in list(self._programs.values()):
            if program.writes.peer == peer:
                program.failed = program.failed or "disconnected"
                self._end_if_quiet(program)

    def expect(self, slot: int, weight: int) -> None:
        if not 0 <= slot < MAX_SLOTS or weight < 1:
            raise ValueError(f"slot {slot} or weight {weight} out of range")
        if slot in self._expected:
            raise ValueError(f"slot {slot} counts already")
        self._expected[slot] = [0, weight]

    def forget(self, slot: int) -> int:
        return self._expected.pop(slot, [0])[0]

    def arm(self, writes: LayerWrites) -> int:
        if writes.peer not in self._targets:
            raise EngineError(f"{writes.peer} is not connected")
        self._handles += 1
        program = self._programs[self._handles] = _Program(self, self._handles, writes)
        self._advance(program)
        return self._handles

    def cancel(self, handle: int) -> None:
        program = self._programs.get(handle)
        if program is not None:
            program.cancelled = True
            self._end_if_quiet(program)

    def poll(self) -> list[MessengerEvent]:
        events, self._events = self._events, []
        return events

    def fileno(self) -> int:
        raise EngineError("the loopback messenger is polled, not waited for")

    def counters(self) -> dict[str, float]:
        return {"fabric_strays_total": self.strays}

    def close(self) -> None:
        self._network.members.pop(self._name, None)

    # --- what the network calls ---

    def land(self, key: int, offset: int, data: bytes, immediate: int) -> bool:
        """A write arrives; False where its key is not valid."""
        if key not in self._keys:
            return False
        self.memory[offset : offset + len(data)] = data
        slot, weight = decode(immediate)
        counted = self._expected.get(slot)
        if counted is None:
            self.strays += weight
            return True
        before = counted[0]
        counted[0] += weight
        if before < counted[1] <= counted[0]:
            self._events.append(SlotFilled(slot=slot, at_ns=time.monotonic_ns()))
        return True

    def landed(self, program: _Program, reason: str) -> None:
        """One write of a program is no longer in flight."""
        program.flying -= 1
        program.failed = program.failed or reason
        self._end_if_quiet(program)

    # --- posting ---

    def _advance(self, program: _Program) -> None:
        layers, base = self._layout.kv.layers, program.writes.base
        while program.next_layer < layers and not (program.cancelled or program.failed):
            if base is not None and self.bumps < base + program.next_layer + 1:
                return
            self._post_layer(program, program.next_layer)
            program.next_layer += 1

    def _post_layer(self, program: _Program, layer: int) -> None:
        address, key, pages = self._targets[program.writes.peer]
        program.seen.append(time.monotonic_ns())
        size = 0
        for copies in program.writes.copies:
            for source, destination in zip(copies.source_pages, copies.destination_pages, strict=True):
                offset, start = self._extent(copies, layer, pages, source, destination)
                immediate = encode(program.writes.slot, 1)
                self._network.flying.append(_Write(program, address, key, immediate, offset, start, copies.nbytes))
                program.flying += 1
                size += copies.nbytes
        program.posted.append(time.monotonic_ns())
        program.sizes.append(size)

    def _extent(
        self, copies: PageCopies, layer: int, destination_pages: int, source: int, destination: int
    ) -> tuple[int, int]:
        page_bytes = self._layout.page_bytes(0)
        start = self._layout.layer_offset(0, layer) + source * page_bytes + copies.source_offset
        offset = (layer * destination_pages + destination) * page_bytes + copies.destination_offset
        return offset, start

    def _end_if_quiet(self, program: _Program) -> None:
        if program.flying or program.handle not in self._programs:
            return
        complete = program.next_layer == self._layout.kv.layers
        if not (complete or program.cancelled or program.failed):
            return
        del self._programs[program.handle]
        if program.failed or not complete:
            self._events.append(WritesEnded(handle=program.handle, reason=program.failed))
        else:
            self._events.append(
                WritesDone(
                    handle=program.handle,
                    seen_ns=tuple(program.seen),
                    posted_ns=tuple(program.posted),
                    layer_bytes=tuple(program.sizes),
                )
            )
