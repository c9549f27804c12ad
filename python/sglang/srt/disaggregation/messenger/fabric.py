"""The messenger over pyfabric: libfabric writes, posted layer by layer by a native watcher.

The only file that imports pyfabric. It translates between the engine's names (peers, ranks, pages) and the transfer
engine's (endpoints, regions, byte offsets); it holds no policy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import pyfabric
from sglang.srt.core.layout import ShardLayout
from sglang.srt.core.ports import (
    LayerWrites,
    MessengerEvent,
    PageCopies,
    PeerUnreachable,
    RemoteRegion,
    SlotFilled,
    WritesDone,
    WritesEnded,
)
from sglang.srt.errors import ConfigError, EngineError


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """One rank's KV region as this process sees it."""

    address: int
    nbytes: int
    descriptor: int = -1
    """The sealed memfd behind it, from its first byte; -1: private memory, which provider `mapped` cannot send from."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A peer that may be written to."""

    endpoint: int
    regions: tuple[pyfabric.RemoteRegion, ...]
    layer_offsets: tuple[NDArray[np.uint64], ...]
    """Per destination rank: byte offset of each layer's page 0."""
    page_bytes: tuple[int, ...]


class FabricMessenger:
    """A `KVMessenger` whose bytes travel through one pyfabric engine."""

    def __init__(self, *, provider: str, node: str, weight_bits: int, slots: int, layerwise: bool = True) -> None:
        """Phase one: opens the fabric, so that the layer hook has its counter before the pools exist.

        Without `layerwise` every layer waits for the last one of its forward. Raises ConfigError where the provider
        cannot be had.
        """
        try:
            self._engine = pyfabric.Engine(provider=provider, weight_bits=weight_bits, slots=slots, node=node)
        except pyfabric.FabricError as error:
            raise ConfigError(f"--disagg-provider {provider}: {error}") from error
        self.counter = self._engine.counter()
        """The word that the layer hook bumps."""
        self._layerwise = layerwise
        self._targets: dict[str, _Target] = {}
        self._names: dict[int, str] = {}
        self._granted: set[str] = set()
        self._layout: ShardLayout
        self._regions: list[pyfabric.MemoryRegion] = []
        self._loads: dict[int, dict[int, int]] = {}
        """Of each program that has not ended: bytes by source rank."""
        self._sent: dict[int, int] = {}
        """Bytes of programs that are done, by source rank."""

    def start(self, pools: Sequence[PoolMemory], layout: ShardLayout) -> None:
        """Phase two: registers every rank's pool and starts the native threads. The pools must outlive close()."""
        self._layout = layout
        self._sent = dict.fromkeys(range(layout.tp_size), 0)
        self._regions = [self._engine.register(pool.address, pool.nbytes, fd=pool.descriptor) for pool in pools]
        self._layers = np.arange(layout.kv.layers, dtype=np.uint64)
        self._offsets = [
            self._layers * np.uint64(layout.num_pages * layout.page_bytes(rank)) for rank in range(layout.tp_size)
        ]
        self._engine.start()

    @property
    def provider(self) -> str:
        return self._engine.provider

    @property
    def needs_shared_memory(self) -> bool:
        """Whether the pools must lie in shareable memory: the receiving engine reads them itself."""
        return self._engine.provider == "mapped"

    @property
    def address(self) -> bytes:
        return self._engine.address

    @property
    def library(self) -> str:
        """Path and version of the libfabric in use."""
        return f"{self._engine.library} {self._engine.library_version}"

    def grant(self, peer: str) -> tuple[RemoteRegion, ...]:
        if peer in self._granted:
            raise EngineError(f"{peer} holds a memory key already")
        self._granted.add(peer)
        granted = [region.grant(peer) for region in self._regions]
        return tuple(RemoteRegion(rank=rank, base=g.base, key=g.key, nbytes=g.nbytes) for rank, g in enumerate(granted))

    def locate(self, peer: str, address: bytes) -> None:
        if peer not in self._granted:
            return
        try:
            for region in self._regions:
                region.grant(peer, address)
        except ValueError as error:
            raise EngineError(f"the fabric address of {peer} is unusable: {error}") from error

    def revoke(self, peer: str) -> None:
        if peer in self._granted:
            self._granted.remove(peer)
            for region in self._regions:
                region.revoke(peer)

    def connect(self, peer: str, address: bytes, regions: Sequence[RemoteRegion], destination_pages: int) -> None:
        self.disconnect(peer)
        layers = self._layout.kv.layers
        page_bytes = tuple(region.nbytes // (layers * destination_pages) for region in regions)
        try:
            endpoint = self._engine.connect(address)
        except (pyfabric.FabricError, ValueError) as error:
            raise EngineError(f"the fabric address of {peer} is unusable: {error}") from error
        self._targets[peer] = _Target(
            endpoint,
            tuple(pyfabric.RemoteRegion(base=r.base, key=r.key, nbytes=r.nbytes) for r in regions),
            tuple(self._layers * np.uint64(destination_pages * size) for size in page_bytes),
            page_bytes,
        )
        self._names[endpoint] = peer
        self._engine.warm(endpoint)

    def disconnect(self, peer: str) -> None:
        target = self._targets.pop(peer, None)
        if target is not None:
            del self._names[target.endpoint]
            self._engine.disconnect(target.endpoint)

    def expect(self, slot: int, weight: int) -> None:
        self._engine.expect(slot, weight)

    def forget(self, slot: int) -> int:
        return self._engine.forget(slot)

    def arm(self, writes: LayerWrites) -> int:
        target = self._targets.get(writes.peer)
        if target is None:
            raise EngineError(f"{writes.peer} is not connected")
        thresholds = self._thresholds(writes.base)
        lanes = tuple(self._lane(target, copies) for copies in writes.copies)
        handle = self._engine.arm(
            pyfabric.Program(counter=self.counter, thresholds=thresholds, slot=writes.slot, lanes=lanes)
        )
        load = self._loads[handle] = dict.fromkeys((copies.source_rank for copies in writes.copies), 0)
        for copies in writes.copies:
            load[copies.source_rank] += copies.nbytes * len(copies.source_pages) * len(thresholds)
        return handle

    def _thresholds(self, base: int | None) -> NDArray[np.uint64]:
        if base is None:
            return np.zeros_like(self._layers)
        layers = self._layers if self._layerwise else np.full_like(self._layers, self._layers[-1])
        return layers + np.uint64(base + 1)

    def _lane(self, target: _Target, copies: PageCopies) -> pyfabric.Lane:
        rank = copies.destination_rank
        return pyfabric.Lane(
            source=self._regions[copies.source_rank],
            peer=target.endpoint,
            destination=target.regions[rank],
            source_layers=self._offsets[copies.source_rank],
            destination_layers=target.layer_offsets[rank],
            source_page_bytes=self._layout.page_bytes(copies.source_rank),
            destination_page_bytes=target.page_bytes[rank],
            source_offset=copies.source_offset,
            destination_offset=copies.destination_offset,
            nbytes=copies.nbytes,
            source_pages=np.asarray(copies.source_pages, dtype=np.int32),
            destination_pages=np.asarray(copies.destination_pages, dtype=np.int32),
        )

    def cancel(self, handle: int) -> None:
        self._engine.cancel(handle)

    def poll(self) -> list[MessengerEvent]:
        events = (self._translate(event) for event in self._engine.poll())
        return [event for event in events if event is not None]

    def _translate(self, event: pyfabric.Event) -> MessengerEvent | None:
        match event:
            case pyfabric.SlotComplete():
                return SlotFilled(slot=event.slot, at_ns=event.completed_ns)
            case pyfabric.ProgramDone():
                for rank, nbytes in self._loads.pop(event.handle).items():
                    self._sent[rank] += nbytes
                return WritesDone(
                    handle=event.handle,
                    seen_ns=tuple(event.seen_ns.tolist()),
                    posted_ns=tuple(event.posted_ns.tolist()),
                    layer_bytes=tuple(event.layer_bytes.tolist()),
                )
            case pyfabric.ProgramDrained():
                del self._loads[event.handle]
                return WritesEnded(handle=event.handle, reason="")
            case pyfabric.ProgramFailed():
                del self._loads[event.handle]
                return WritesEnded(handle=event.handle, reason=event.reason or "unknown")
            case pyfabric.PeerLost():
                name = self._names.get(event.peer)
                return None if name is None else PeerUnreachable(peer=name, reason=event.reason)
            case _:
                return None

    def fileno(self) -> int:
        return self._engine.fileno()

    def counters(self) -> dict[str, float]:
        stats = self._engine.stats()
        return {
            "fabric_writes_total": stats.writes_posted,
            "fabric_pages_total": stats.pages_posted,
            "fabric_bytes_total": stats.bytes_posted,
            "fabric_immediates_total": stats.immediates,
            "fabric_strays_total": stats.strays,
            "fabric_errors_total": stats.errors,
            "fabric_eagain_total": stats.eagain,
            **{f"fabric_rank_{rank}_bytes_total": nbytes for rank, nbytes in self._sent.items()},
        }

    def close(self) -> None:
        self._engine.close()
