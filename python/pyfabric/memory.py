"""Registered memory, and the description of what to copy from it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pyfabric import _core


@dataclass(frozen=True, slots=True)
class RemoteRegion:
    """A grant, as its holder needs it: write at base + offset under `key`, for offsets below `nbytes`.

    Attributes:
        base: 0 where the provider counts offsets from the region's start, else the region's virtual address.
        key: of the granting engine's first domain.
        further_keys: of its other domains, in their order.
    """

    base: int
    key: int
    nbytes: int
    further_keys: tuple[int, ...] = ()


class MemoryRegion:
    """Memory of the caller, registered with one engine. The caller keeps the memory alive until close()."""

    __slots__ = ("_engine", "native")

    def __init__(self, engine: "_core.Engine", native: "_core.Region") -> None:
        self._engine = engine
        self.native = native

    @property
    def address(self) -> int:
        return self.native.address

    @property
    def nbytes(self) -> int:
        return self.native.nbytes

    def grant(self, peer: str, address: bytes = b"") -> RemoteRegion:
        """Lets the peer write to the region, under a key of its own. The same label gets the same grant until revoked.

        Args:
            peer: any label.
            address: the peer's Engine.address, if known; may be told later, by a second call. On socket providers a
                revoke then cuts the connections of that peer's process (or machine) alone; without it, of everyone who
                writes to this engine.

        Raises:
            ValueError: the region is closed, its memory is not writable, or `address` is not an address.
            FabricError: the provider refuses the registration.
        """
        grant = self.native.grant(peer, address)
        return RemoteRegion(grant.base, grant.keys[0], grant.nbytes, grant.keys[1:])

    def revoke(self, peer: str) -> None:
        """Fences the peer: when this returns, writes under its key land nowhere. A peer without a grant is ignored.

        On socket providers this ends connections (see grant()), so that a write half received cannot go on landing:
        other programs that use them end as ProgramFailed and may be sent again. The next write connects anew.

        Raises:
            WorkerHungError: the worker hangs in the provider, so the fence cannot be vouched for.
        """
        self._engine.revoke(self.native, peer)

    def close(self) -> None:
        """Ends the registration and all its grants. Idempotent.

        Raises:
            RegionBusyError: programs that have not ended read from the region.
        """
        self.native.close()


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """What one source rank sends to one destination rank: the same pages of every layer.

    For every layer l and index i, `nbytes` bytes go from source_layers[l] + source_pages[i] * source_page_bytes +
    source_offset to destination_layers[l] + destination_pages[i] * destination_page_bytes + destination_offset.

    Attributes:
        source_layers, destination_layers: uint64 [layers], byte offset of the layer's page 0 inside the region.
        source_page_bytes, destination_page_bytes: bytes from one page to the next.
        source_offset, destination_offset: bytes from a page's start to the extent.
        nbytes: bytes of the extent.
        source_pages, destination_pages: int32 [pages].
    """

    source: MemoryRegion
    peer: int
    destination: RemoteRegion
    source_layers: NDArray[np.uint64]
    destination_layers: NDArray[np.uint64]
    source_page_bytes: int
    destination_page_bytes: int
    source_offset: int
    destination_offset: int
    nbytes: int
    source_pages: NDArray[np.int32]
    destination_pages: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Writes that follow a counter: layer l of every lane is posted once the counter reaches thresholds[l].

    Attributes:
        thresholds: uint64 [layers], not decreasing.
        slot: the receiver's counting slot; each write carries it with the number of extents in that write.
    """

    counter: "_core.Counter"
    thresholds: NDArray[np.uint64]
    slot: int
    lanes: tuple[Lane, ...]
