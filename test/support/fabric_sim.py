"""The simulated cluster over real libfabric: same schedulers and roles, real threads, real time."""

import ctypes
import time

from sglang.srt.core.layout import ShardLayout
from sglang.srt.disaggregation.handoff.immediates import WEIGHT_BITS
from sglang.srt.disaggregation.messenger.fabric import FabricMessenger, PoolMemory
from support.sim import Sim


class WallClock:
    """Real time behind the interface of the simulation's clock."""

    def now(self) -> float:
        return time.monotonic()

    def advance(self, seconds: float) -> None:
        """Real time advances by itself; a pause as short as the simulation's step lets native threads work."""
        time.sleep(min(seconds, 0.0005))


class _Bumped(FabricMessenger):
    def bump(self, layers: int = 1) -> None:
        """The simulated worker finished a layer."""
        self.counter.add(layers)


class FabricSim(Sim):
    """A `Sim` whose engines write through one fabric provider."""

    def __init__(self, seed: int, provider: str, **more: int) -> None:
        super().__init__(seed, **more)
        self.clock = WallClock()  # type: ignore[assignment]
        self.provider = provider
        self.opened: list[FabricMessenger] = []

    def messenger(self, name: str, memory: bytearray, layout: ShardLayout) -> _Bumped:
        messenger = _Bumped(provider=self.provider, node="127.0.0.1", weight_bits=WEIGHT_BITS, slots=4096)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        messenger.start([PoolMemory(address, len(memory))], layout)
        self.opened.append(messenger)
        return messenger

    def close(self) -> None:
        """Release every fabric endpoint."""
        for messenger in self.opened:
            messenger.close()
