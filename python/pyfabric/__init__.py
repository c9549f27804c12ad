"""pyfabric: a native libfabric transfer engine. Not related to the Microsoft Fabric package of that name on PyPI."""

from pyfabric.loader import load as _load

LIBRARY = _load()  # before _core: the native module binds to the libfabric that is open by then

from pyfabric._core import Counter  # noqa: E402
from pyfabric.engine import Engine, PeerStats, Stats  # noqa: E402
from pyfabric.errors import (  # noqa: E402
    FabricError,
    LibraryNotFoundError,
    ProviderUnavailableError,
    RegionBusyError,
    WorkerHungError,
)
from pyfabric.events import (  # noqa: E402
    Event,
    PeerLost,
    PeerReady,
    ProgramDone,
    ProgramDrained,
    ProgramFailed,
    SlotComplete,
)
from pyfabric.memory import Lane, MemoryRegion, Program, RemoteRegion  # noqa: E402
from pyfabric.topology import Topology, read_topology  # noqa: E402

__all__ = [
    "LIBRARY",
    "Counter",
    "Engine",
    "Event",
    "FabricError",
    "Lane",
    "LibraryNotFoundError",
    "MemoryRegion",
    "PeerLost",
    "PeerReady",
    "PeerStats",
    "Program",
    "ProgramDone",
    "ProgramDrained",
    "ProgramFailed",
    "ProviderUnavailableError",
    "RegionBusyError",
    "RemoteRegion",
    "SlotComplete",
    "Stats",
    "Topology",
    "WorkerHungError",
    "read_topology",
]
