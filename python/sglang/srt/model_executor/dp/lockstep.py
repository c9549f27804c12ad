"""What the replicas of an engine with data-parallel attention share: rounds that all of them step in, and the memory
that their experts exchange tokens through. Without torch: the HTTP process makes it and can give it up.
"""

from sglang.srt.config.hardware import detect
from sglang.srt.distributed import _shm
from sglang.srt.distributed.shared_group import group_bytes, spin_ns
from sglang.srt.kv_pool.shareable import SharedMemory

ROUNDS_BYTES = 4096
"""Room for the rounds, a page of their own."""


def lockstep_memory(size: int) -> SharedMemory:
    """For `size` replicas. Raises ConfigError where the system has no shared memory."""
    return SharedMemory.create(lockstep_bytes(size), "lockstep")


def lockstep_bytes(size: int) -> int:
    """Memory for `size` replicas."""
    return ROUNDS_BYTES + group_bytes(size)


class Lockstep:
    """One replica's end.

    A round is one forward pass of every replica at once: with tokens where there is work, without where there is none.
    Whoever has work calls a round and all join it, so nobody needs to know what the others plan; how many tokens each
    brings is said in every exchange anew.
    """

    def __init__(self, memory: SharedMemory, rank: int, size: int) -> None:
        """`memory` of lockstep_bytes(size), zeroed when the first replica comes."""
        self._memory = memory
        self.rank = rank
        self.size = size
        cores = len(detect().cores)
        self.rounds = _shm.Rounds(address=memory.address, nbytes=ROUNDS_BYTES, size=size)
        self.group = _shm.Group(
            address=memory.address + ROUNDS_BYTES,
            nbytes=memory.nbytes - ROUNDS_BYTES,
            rank=rank,
            size=size,
            spin_ns=spin_ns(size, cores),
        )

    def give_up(self) -> None:
        """End every replica's rounds, also in the middle of one. Idempotent."""
        self.rounds.close()
        self.group.abort()

    def progress(self) -> str:
        """Who is behind, for a log."""
        entered = (f"dp {rank}: {count}" for rank, count in enumerate(self.group.progress()))
        return "barriers entered by " + ", ".join(entered)
