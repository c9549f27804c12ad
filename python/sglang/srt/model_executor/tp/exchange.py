"""The memory that the ranks of an engine exchange through: collectives, and the lead's plans to all others."""

from sglang.srt.config.hardware import detect
from sglang.srt.distributed import _shm
from sglang.srt.distributed.shared_group import group_bytes, spin_ns
from sglang.srt.distributed.shm_collectives import ShmCollectives
from sglang.srt.kv_pool.shareable import SharedMemory

PLAN_BYTES = 8 << 20
"""Plans that wait. Two are in flight, and one of a 128k-token prompt in one chunk takes 0.6 MB; untouched, the memory
does not exist."""


def exchange_bytes(size: int) -> int:
    """Memory for `size` ranks."""
    return group_bytes(size) + PLAN_BYTES


class Exchange:
    """One rank's end of it."""

    def __init__(self, memory: SharedMemory, rank: int, size: int) -> None:
        """`memory` of exchange_bytes(size), zeroed when the first rank comes."""
        self._memory = memory
        self._reader = rank - 1
        spin, shared = spin_ns(size, len(detect().cores)), group_bytes(size)
        self.group = _shm.Group(address=memory.address, nbytes=shared, rank=rank, size=size, spin_ns=spin)
        self._plans = _shm.Mailbox(address=memory.address + shared, nbytes=PLAN_BYTES, readers=size - 1, spin_ns=0)
        self.collectives = ShmCollectives(self.group, rank, size)

    def publish(self, plan: bytes) -> bool:
        """The lead's plan to all others; False where a rank has not read for too long. Never blocks."""
        return self._plans.publish(plan)

    def next_plan(self) -> bytes | None:
        """For the others: the next plan, waiting for it; None once the lead has closed."""
        return self._plans.receive(self._reader)

    def give_up(self) -> None:
        """Ends every rank's waiting, now and later. Idempotent."""
        self.group.abort()
        self._plans.close()

    def progress(self) -> list[int]:
        """Barriers that each rank has entered."""
        return self.group.progress()
