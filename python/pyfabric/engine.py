"""The transfer engine: paged writes that follow a counter, counted by whoever receives them."""

from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self

from pyfabric import _core
from pyfabric.events import Event, from_native
from pyfabric.memory import Lane, MemoryRegion, Program

_LARGEST: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Stats:
    """Totals since the engine was opened, except `in_flight` and `armed`, which are now.

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
        remote.key,
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


class Engine:
    """One endpoint with one native worker thread. Any thread may call any method; poll() and the rest never block.

    Args:
        provider: "auto" (a NIC if there is one, else tcp), "tcp", "shm", "efa", "verbs", or a libfabric name.
        weight_bits: low bits of the 32-bit immediate that hold the weight; the others hold the slot. 1..31.
        slots: counting slots of this engine, at most 2 ** (32 - weight_bits).
        node: local address that socket providers bind to.
        post_deadline_s: seconds after which a peer that takes or completes no write is lost.
        spin: the worker never sleeps while programs are armed or writes are due: for counters bumped without add().

    Raises:
        FabricError: no such provider, or it cannot be opened; the message names the provider and the library.
        ValueError: an argument out of range.
    """

    __slots__ = ("_native", "address", "library", "library_version", "memory_model", "provider")

    def __init__(
        self,
        *,
        provider: str = "auto",
        weight_bits: int = 16,
        slots: int = 4096,
        node: str = "127.0.0.1",
        post_deadline_s: float = 10.0,
        spin: bool = False,
    ) -> None:
        self._native = _core.Engine(
            provider=provider,
            node=node,
            weight_bits=_unsigned("weight_bits", weight_bits, 31),
            slots=_unsigned("slots", slots),
            post_deadline_s=post_deadline_s,
            spin=spin,
        )
        self.provider: str = self._native.provider
        self.library: str = _core.library_path()
        self.library_version: str = _core.library_version()
        self.address: bytes = self._native.address
        self.memory_model: Literal["offset", "virtual"] = "virtual" if self._native.virtual_addresses else "offset"

    def start(self) -> None:
        """Starts the worker. Until then nothing is sent or counted. Idempotent."""
        self._native.start()

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

    def register(self, address: int, nbytes: int) -> MemoryRegion:
        """Registers memory of this process; the caller keeps it alive until the region or the engine is closed.

        Keep the returned region too: when it is dropped, its registration and all its grants end.

        Raises:
            ValueError: the range is empty, or not mapped and readable.
            FabricError: the provider refuses it.
        """
        native = self._native.register_memory(_unsigned("address", address), _unsigned("nbytes", nbytes))
        return MemoryRegion(self._native, native)

    def connect(self, address: bytes) -> int:
        """Makes a peer of another engine's `address` and returns its id. Nothing is sent yet.

        Raises:
            ValueError: not an address, or one of another provider.
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

        Raises:
            ValueError: the slot is not expected.
        """
        return self._native.forget(_unsigned("slot", slot))

    def counter(self) -> _core.Counter:
        """A new counter at 0. It may outlive the engine."""
        return self._native.counter()

    def arm(self, program: Program) -> int:
        """Hands a program to the worker and returns its handle. Thresholds already reached fire at once.

        Exactly one of ProgramDone, ProgramDrained and ProgramFailed follows.

        Raises:
            ValueError: an array of the wrong type, an extent outside its region, an unknown peer, a closed region; the
                message names the lane and the field. Nothing was posted.
        """
        lanes = [_flat(lane) for lane in program.lanes]
        return self._native.arm(program.counter, program.thresholds, program.slot, lanes)

    def cancel(self, handle: int) -> None:
        """Stops posting; ProgramDrained follows once nothing is in flight. A no-op when the program has ended.

        Raises:
            ValueError: the handle was never given out.
        """
        self._native.cancel(_unsigned("handle", handle))

    def stats(self) -> Stats:
        return Stats(**self._native.stats())
