"""One messenger sends for all ranks of an engine to all ranks of another, over tcp: pages arrive byte for byte, weights
add up exactly, source ranks share the work.
"""

import random
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

from sglang.srt.core.layout import KVLayout, ShardLayout
from sglang.srt.core.ports import LayerWrites, MessengerEvent, PageCopies, SlotFilled, WritesDone
from sglang.srt.disaggregation.handoff.immediates import WEIGHT_BITS
from sglang.srt.disaggregation.messenger.fabric import FabricMessenger, PoolMemory
from sglang.srt.disaggregation.shardmap.plan import ShardCopy, expected_weight, plan_copies
from sglang.srt.kv_pool.shareable import SharedMemory

PAGES = 40
COUNT = 24
CASES = [(kind, p, d) for kind in ("gqa-2", "gqa-8", "mla") for p in (1, 2, 4, 8) for d in (1, 2, 4, 8)]


def shard(kind: str, tp: int) -> ShardLayout:
    heads = 1 if kind == "mla" else int(kind.split("-")[1])
    kv = KVLayout(
        kind="mla" if kind == "mla" else "gqa", layers=3, page_size=4, kv_heads=heads, head_dim=6, dtype="float32",
        model="m",
    )  # fmt: skip
    return ShardLayout(kv=kv, tp_size=tp, num_pages=PAGES)


class Side:
    """A messenger and its ranks' pools."""

    def __init__(self, layout: ShardLayout) -> None:
        self.layout = layout
        self.memory = [SharedMemory.create(layout.region_bytes(rank), "test") for rank in range(layout.tp_size)]
        self.messenger = FabricMessenger(provider="tcp", node="127.0.0.1", weight_bits=WEIGHT_BITS, slots=16)
        pools = [PoolMemory(region.address, region.nbytes, region.fileno()) for region in self.memory]
        self.messenger.start(pools, layout)

    def heads(self, rank: int) -> NDArray[np.uint8]:
        """A rank's pool, `[layers, pages, heads, bytes of a head]`."""
        flat = np.frombuffer(self.memory[rank].buffer, dtype=np.uint8)
        return flat.reshape(self.layout.kv.layers, PAGES, -1, self.layout.kv.head_bytes)

    def close(self) -> None:
        self.messenger.close()
        for region in self.memory:
            region.close()


@contextmanager
def two(kind: str, p: int, d: int) -> Iterator[tuple[Side, Side, NDArray[np.uint8]]]:
    """Source, destination, and the KV of the whole model that the source's ranks hold parts of."""
    layout = shard(kind, p)
    kv = layout.kv
    whole = np.random.default_rng(7).integers(0, 256, (kv.layers, PAGES, kv.kv_heads, kv.head_bytes), dtype=np.uint8)
    with ExitStack() as stack:
        sides = [Side(layout), Side(shard(kind, d))]
        for side in sides:
            stack.callback(side.close)
        for rank in range(p):
            held = layout.heads_of(rank)
            sides[0].heads(rank)[:] = whole[:, :, held.start : held.stop]
        for rank in range(d):
            sides[1].heads(rank)[:] = 0xEE
        yield sides[0], sides[1], whole


def to_pages(copy: ShardCopy, first: int, source: list[int], destination: list[int]) -> PageCopies:
    """The pages of a stripe: page i of the prompt is source[i - first] here and destination[i - first] there."""
    taken = [index for index in range(len(source)) if copy.takes(first + index)]
    return PageCopies(
        source_rank=copy.source_rank, destination_rank=copy.destination_rank, source_offset=copy.source_offset,
        destination_offset=copy.destination_offset, nbytes=copy.nbytes,
        source_pages=tuple(source[i] for i in taken), destination_pages=tuple(destination[i] for i in taken),
    )  # fmt: skip


def wait_for(messenger: FabricMessenger, kind: type[MessengerEvent]) -> MessengerEvent:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for event in messenger.poll():
            if isinstance(event, kind):
                return event
        select.select([messenger.fileno()], [], [], 0.2)
    raise AssertionError(f"no {kind.__name__}")


@pytest.mark.parametrize(("kind", "p", "d"), CASES)
def test_pages_arrive_byte_for_byte(kind: str, p: int, d: int) -> None:
    rng = random.Random(p * 100 + d)
    here, there = rng.sample(range(PAGES), COUNT), rng.sample(range(PAGES), COUNT)
    first = rng.randrange(5)
    with two(kind, p, d) as (source, destination, whole):
        copies = plan_copies(source.layout, destination.layout, replica_key=rng.randrange(9))
        weight = expected_weight(copies, first, first + COUNT, source.layout.kv.layers)
        regions = destination.messenger.grant("p")
        source.messenger.connect("d", destination.messenger.address, regions, PAGES)
        destination.messenger.expect(3, weight)
        lanes = [to_pages(copy, first, here, there) for copy in copies]
        writes = LayerWrites(peer="d", slot=3, base=None, copies=tuple(lane for lane in lanes if lane.source_pages))
        source.messenger.arm(writes)
        assert isinstance(wait_for(destination.messenger, SlotFilled), SlotFilled)
        done = wait_for(source.messenger, WritesDone)
        assert isinstance(done, WritesDone)
        for rank in range(d):
            held = destination.layout.heads_of(rank)
            found = destination.heads(rank)
            assert np.array_equal(found[:, there], whole[:, here, held.start : held.stop]), f"rank {rank}"
            rest = [page for page in range(PAGES) if page not in there]
            assert (found[:, rest] == 0xEE).all(), f"rank {rank}: a page that was not asked for"
        counters = source.messenger.counters()
        sent = [counters[f"fabric_rank_{rank}_bytes_total"] for rank in range(p)]
        assert sum(sent) == sum(done.layer_bytes) == counters["fabric_bytes_total"]
        # Each destination rank's pages are spread within one page of even, in every layer.
        assert max(sent) - min(sent) <= d * source.layout.kv.layers * max(source.layout.page_bytes(0), 1)
        assert destination.messenger.forget(3) == weight, "no immediate more or less"
