from enum import Enum

class Aborted(RuntimeError):
    """Somebody gave the group up: a rank died, hangs, or leaves."""

class Element(Enum):
    """What a reduction adds; bf16 is added in float32."""

    f32 = ...
    bf16 = ...
    i64 = ...

class Group:
    """Collectives of the ranks of one machine over zeroed memory that all of them have mapped; at most 64 ranks.

    Every rank calls the same operations with the same sizes in the same order. They release the GIL and raise Aborted.
    Addresses are of this process. `spin_ns`: how long a barrier is polled before it is slept on.
    """

    def __init__(self, *, address: int, nbytes: int, rank: int, size: int, spin_ns: int) -> None: ...
    @staticmethod
    def needed(size: int, slot_bytes: int) -> int:
        """Bytes for `size` ranks that exchange up to `slot_bytes` at once; longer operations go in parts."""

    def all_reduce(self, address: int, count: int, element: Element) -> None:
        """Replace `count` elements by their sums over ranks, added in rank order, so that all ranks get equal bits."""

    def all_gather(self, source: int, rows: int, row_bytes: int, target: int) -> None:
        """Each rank's `[rows, row_bytes]` -> `[rows, size, row_bytes]` at `target`."""

    def broadcast(self, address: int, nbytes: int, root: int) -> None:
        """The root's bytes, to everybody."""

    def all_to_all(self, source: int, row_bytes: int, counts: list[int], target: int) -> None:
        """Each rank's rows for each rank. `counts[a * size + b]`, equal on every rank: rows from rank a to rank b.

        `source` holds this rank's rows by destination, `target` gets those for it by sender.
        """

    def barrier(self) -> None:
        """Return once every rank is here; what each wrote before is visible then."""

    def abort(self) -> None:
        """Whoever is in an operation, or enters one that others do not complete, gets Aborted within 0.1 s."""

    def progress(self) -> list[int]:
        """How many barriers each rank has entered: who hangs is behind."""

class Mailbox:
    """One writer's messages to up to 64 readers, each of which gets all of them in order; zeroed shared memory."""

    def __init__(self, *, address: int, nbytes: int, readers: int, spin_ns: int) -> None: ...
    def publish(self, data: bytes) -> bool:
        """False where the slowest reader leaves too little room. Never blocks."""

    def receive(self, reader: int) -> bytes | None:
        """The reader's next message, waiting for it; None once the writer has closed and all is read."""

    def close(self) -> None:
        """The writer has said everything."""

class Rounds:
    """Ranks that step together although each has work of its own: whoever has some calls, and every rank joins.

    What happens in a round must synchronise the ranks; zeroed shared memory.
    """

    def __init__(self, *, address: int, nbytes: int, size: int) -> None: ...
    @staticmethod
    def needed() -> int:
        """Bytes."""

    def call(self) -> None:
        """There will be a round after those that this rank has joined. For any thread of the rank; never blocks."""

    def join(self) -> bool:
        """Wait for the next round; False once the rounds are over. One thread of a rank joins."""

    def leave(self) -> None:
        """This rank calls no more, but joins until every rank has left. Once for each rank."""

    def close(self) -> None:
        """No more rounds, for any rank. Idempotent."""
