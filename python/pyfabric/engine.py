"""The transfer engine: paged writes that follow a counter, counted by whoever receives them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from pyfabric import _core
from pyfabric.events import Event, from_native
from pyfabric.memory import Lane, MemoryRegion, Program, RemoteRegion
from pyfabric.topology import read_topology

_LARGEST: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Stats:
    """Totals since the engine was opened, except `in_flight` and `armed`, which are now.

    What an event tells is counted before the event can be polled, and an immediate that is counted has been told apart
    from strays and excess too. A total says nothing of events: wait for an event by polling for it.

    Attributes:
        pages_posted: extents, i.e. the sum of the weights sent.
        strays: immediates for a slot that nobody expects; they are never credited.
        excess: immediates beyond a slot's expected weight.
        eagain: posts that the provider put off; `eagain_ns` is the time peers spent waiting for them.
        abandoned: writes to lost peers that never came back although their connection was cut.
        sleeps: times the worker went to sleep.
    """

    writes_posted: int
    pages_posted: int
    bytes_posted: int
    completions: int
    errors: int
    immediates: int
    strays: int
    excess: int
    eagain: int
    eagain_ns: int
    in_flight: int
    armed: int
    peers_lost: int
    abandoned: int
    sleeps: int


def _unsigned(name: str, value: int, largest: int = _LARGEST) -> int:
    if not 0 <= value <= largest:
        raise ValueError(f"{name} must be 0..{largest}, not {value}")
    return value


def _flat(lane: Lane) -> tuple[Any, ...]:
    remote = lane.destination
    return (
        lane.source.native,
        lane.peer,
        remote.base,
        (remote.key, *remote.further_keys),
        remote.nbytes,
        lane.source_layers,
        lane.destination_layers,
        lane.source_page_bytes,
        lane.destination_page_bytes,
        lane.source_offset,
        lane.destination_offset,
        lane.nbytes,
        lane.source_pages,
        lane.destination_pages,
    )


@dataclass(frozen=True, slots=True)
class PeerStats:
    """Totals of what was sent to one peer since connect(), except `in_flight`, which is now. Units as in Stats.

    Attributes:
        errors: writes to it that failed.
        lost: times that PeerLost was reported for it.
    """

    writes_posted: int
    pages_posted: int
    bytes_posted: int
    errors: int
    eagain: int
    eagain_ns: int
    in_flight: int
    lost: int


class Engine:
    """One native worker thread over one or several endpoints. Any thread may call any method; none waits for a peer.

    Args:
        provider: "auto" (a NIC if there is one, else tcp), "tcp", "shm", "efa", "verbs", a libfabric name, or "mapped":
            memory of this machine, copied by the receiving engine (no libfabric provider; see register()).
        domains: open several and spread the writes of a batch over them: local addresses for socket providers, names of
            domains (NICs) for others. One engine is one group of NICs; an engine a group serves several groups.
        weight_bits: low bits of the 32-bit immediate that hold the weight; the others hold the slot. 1..31.
        slots: counting slots of this engine, at most 2 ** (32 - weight_bits).
        node: local address that socket providers bind to.
        post_deadline_s: seconds after which a peer that takes or completes no write is lost.
        spin: the worker never sleeps while programs are armed or writes are due: for counters bumped without add().

    Raises:
        FabricError: no such provider, or it cannot be opened; the message names the provider and the library.
        ValueError: an argument out of range.
    """

    __slots__ = ("_at_once", "_native", "address", "domains", "library", "library_version", "memory_model", "provider")

    def __init__(
        self,
        *,
        provider: str = "auto",
        weight_bits: int = 16,
        slots: int = 4096,
        node: str = "127.0.0.1",
        post_deadline_s: float = 10.0,
        spin: bool = False,
        domains: Sequence[str] = (),
    ) -> None:
        self._native = _core.Engine(
            provider=provider,
            node=node,
            weight_bits=_unsigned("weight_bits", weight_bits, 31),
            slots=_unsigned("slots", slots),
            post_deadline_s=post_deadline_s,
            spin=spin,
            domains=list(domains),
        )
        self._at_once = self._native.counter()
        self.domains: tuple[str, ...] = tuple(self._native.domains)
        self.provider: str = self._native.provider
        self.library: str = _core.library_path()
        self.library_version: str = _core.library_version()
        self.address: bytes = self._native.address
        self.memory_model: Literal["offset", "virtual"] = "virtual" if self._native.virtual_addresses else "offset"

    def start(self, cpus: Sequence[int] | None = None) -> None:
        """Starts the worker. Until then nothing is sent or counted. Idempotent.

        Args:
            cpus: what the worker may run on. None: the CPUs of its NICs' NUMA node where the machine says which that
                is, else any. CPUs that this process may not use are left out.
        """
        if cpus is None:
            cpus = read_topology().cpus_of_nics(self.domains)
        allowed = os.sched_getaffinity(0)
        self._native.start([cpu for cpu in cpus if cpu in allowed])

    def close(self) -> None:
        """Ends the worker and closes everything, waiting about a second for what is in flight. Idempotent.

        Programs that have not ended end as ProgramFailed; poll() still hands out the last events.

        Raises:
            WorkerHungError: the worker hangs inside the provider; it was left behind and its memory must stay.
        """
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fileno(self) -> int:
        """A descriptor that is readable while events wait."""
        return self._native.fileno()

    def poll(self) -> list[Event]:
        """Takes every waiting event, oldest first. Never blocks."""
        return [from_native(item) for item in self._native.poll()]

    def register(self, address: int, nbytes: int, *, fd: int = -1, fd_offset: int = 0) -> MemoryRegion:
        """Registers memory of this process; the caller keeps it alive until the region or the engine is closed.

        Keep the returned region too: when it is dropped, its registration and all its grants end.

        Args:
            fd: the memfd behind the memory, sealed against shrinking; the engine keeps a descriptor of its own.
                Provider "mapped" needs it for memory that programs read from, the others ignore it. -1: private memory.
            fd_offset: where in the file `address` lies, in bytes.

        Raises:
            ValueError: the range is empty, or not mapped and readable; `fd` is not what backs it.
            FabricError: the provider refuses it.
        """
        native = self._native.register_memory(
            _unsigned("address", address), _unsigned("nbytes", nbytes), fd, _unsigned("fd_offset", fd_offset)
        )
        return MemoryRegion(self._native, native)

    def connect(self, address: bytes) -> int:
        """Makes a peer of another engine's `address` and returns its id. Nothing is sent yet.

        Raises:
            ValueError: not an address, or one of another provider; over shm one of this process that writes to us.
        """
        return self._native.connect(address)

    def warm(self, peer: int) -> None:
        """Brings the peer's connection up with a write to its scratch bytes: PeerReady or PeerLost follows.

        Raises:
            ValueError: no such peer.
        """
        self._native.warm(_unsigned("peer", peer, 2**62))

    def disconnect(self, peer: int) -> None:
        """Forgets the peer. Its programs end as ProgramFailed once nothing of them is in flight.

        Raises:
            ValueError: no such peer.
        """
        self._native.disconnect(_unsigned("peer", peer, 2**62))

    def expect(self, slot: int, weight: int) -> None:
        """Starts counting a slot: SlotComplete follows, once, when `weight` has arrived.

        Raises:
            ValueError: the slot is busy or out of range, or the weight is not positive.
        """
        if weight <= 0:
            raise ValueError(f"weight must be positive, not {weight}")
        self._native.expect(_unsigned("slot", slot), _unsigned("weight", weight))

    def forget(self, slot: int) -> int:
        """Frees a slot and returns the weight that arrived. Later immediates for it are strays.

        A slot that is not complete is freed once the worker has counted all that has come in (tens of microseconds), so
        that none of it can count for the slot's next use. Its SlotComplete is dropped unless poll() has handed it out.

        Raises:
            ValueError: the slot is not expected.
            WorkerHungError: the worker hangs in the provider.
        """
        return self._native.forget(_unsigned("slot", slot))

    def counter(self) -> _core.Counter:
        """A new counter at 0. It may outlive the engine."""
        return self._native.counter()

    def arm(self, program: Program) -> int:
        """Hands a program to the worker and returns its handle. Thresholds already reached fire at once.

        Exactly one of ProgramDone, ProgramDrained and ProgramFailed follows.

        Raises:
            ValueError: an array of the wrong type, an extent outside its region, an unknown peer, a closed region, a
                source without a descriptor where the provider needs one; the message names the lane and the field.
                Nothing was posted.
            WorkerHungError: the worker hangs inside the provider; everything that was armed has ended as ProgramFailed.
        """
        lanes = [_flat(lane) for lane in program.lanes]
        return self._native.arm(program.counter, program.thresholds, program.slot, lanes)

    def write(
        self,
        source: MemoryRegion,
        source_offset: int,
        peer: int,
        destination: RemoteRegion,
        destination_offset: int,
        nbytes: int,
        *,
        slot: int,
    ) -> int:
        """Writes one contiguous range now and returns its handle, as arm() of a program that waits for nothing.

        Args:
            source_offset, destination_offset: bytes from the start of either region.
            nbytes: at most the provider's largest write (mapped: 16 MiB); longer ranges are pages of write_pages().
            slot: the receiver's counting slot, where it adds 1.

        Raises:
            ValueError, WorkerHungError: as arm().
        """
        page = np.zeros(1, np.int32)
        return self.write_pages(
            source,
            page,
            peer,
            destination,
            page,
            stride=nbytes,
            source_offset=source_offset,
            destination_offset=destination_offset,
            nbytes=nbytes,
            slot=slot,
        )

    def write_pages(
        self,
        source: MemoryRegion,
        source_pages: NDArray[np.int32],
        peer: int,
        destination: RemoteRegion,
        destination_pages: NDArray[np.int32],
        *,
        stride: int,
        nbytes: int,
        slot: int,
        source_offset: int = 0,
        destination_offset: int = 0,
    ) -> int:
        """Writes pages now and returns a handle, as arm() of a program that waits for nothing: cancel() takes it, and
        one of ProgramDone, ProgramDrained and ProgramFailed follows.

        For every index i, `nbytes` bytes go from source_offset + source_pages[i] * stride to destination_offset +
        destination_pages[i] * stride. Strides that differ, several layers or peers: arm().

        Args:
            source_pages, destination_pages: int32 [pages].
            stride: bytes from one page to the next, on both sides.
            nbytes: bytes of a page that are written, at most `stride`.
            slot: the receiver's counting slot, where it adds len(source_pages) in all.
            source_offset, destination_offset: bytes from the start of either region to page 0's extent.

        Raises:
            ValueError, WorkerHungError: as arm().
        """
        lane = Lane(
            source=source,
            peer=peer,
            destination=destination,
            source_layers=np.array([_unsigned("source_offset", source_offset)], np.uint64),
            destination_layers=np.array([_unsigned("destination_offset", destination_offset)], np.uint64),
            source_page_bytes=stride,
            destination_page_bytes=stride,
            source_offset=0,
            destination_offset=0,
            nbytes=nbytes,
            source_pages=source_pages,
            destination_pages=destination_pages,
        )
        return self.arm(Program(self._at_once, np.zeros(1, np.uint64), slot, (lane,)))

    def cancel(self, handle: int) -> None:
        """Stops posting; ProgramDrained follows once nothing is in flight. A no-op when the program has ended.

        Raises:
            ValueError: the handle was never given out.
        """
        self._native.cancel(_unsigned("handle", handle))

    def stats(self) -> Stats:
        return Stats(**self._native.stats())

    def peer_stats(self, peer: int) -> PeerStats:
        """Raises:
        ValueError: no such peer.
        """
        return PeerStats(**self._native.peer_stats(_unsigned("peer", peer, 2**62)))
