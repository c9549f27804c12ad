"""The comparison of benchmark/layerwise.py is honest: without `layerwise` nothing leaves before the last layer."""

import select
import time
from contextlib import ExitStack

import numpy as np
import pytest

from sglang.srt.core.layout import KVLayout, ShardLayout
from sglang.srt.core.ports import LayerWrites, PageCopies
from sglang.srt.disaggregation.handoff.immediates import WEIGHT_BITS
from sglang.srt.disaggregation.messenger.fabric import FabricMessenger, PoolMemory
from sglang.srt.kv_pool.shareable import SharedMemory

KV = KVLayout(kind="gqa", layers=4, page_size=4, kv_heads=2, head_dim=8, dtype="float32", model="m")
LAYOUT = ShardLayout(kv=KV, tp_size=1, num_pages=3)


def landed(memory: SharedMemory) -> list[int]:
    """Layers of which page 2 is there."""
    pages = np.frombuffer(memory.buffer, dtype=np.uint8).reshape(KV.layers, LAYOUT.num_pages, -1)
    return [layer for layer in range(KV.layers) if (pages[layer, 2] == 1).all()]


def settle(messenger: FabricMessenger, memory: SharedMemory, count: int, seconds: float) -> list[int]:
    """Wait until `count` layers are there, or `seconds`."""
    end = time.monotonic() + seconds
    while len(landed(memory)) < count and time.monotonic() < end:
        select.select([messenger.fileno()], [], [], 0.01)
        messenger.poll()
    return landed(memory)


@pytest.mark.parametrize(("layerwise", "before_the_last"), [(True, [0, 1, 2]), (False, [])])
def test_when_layers_leave(layerwise: bool, before_the_last: list[int]) -> None:
    with ExitStack() as stack:
        memory = [SharedMemory.create(LAYOUT.region_bytes(0), "test") for _ in range(2)]
        sides = [
            FabricMessenger(provider="tcp", node="127.0.0.1", weight_bits=WEIGHT_BITS, slots=4, layerwise=layerwise)
            for _ in range(2)
        ]
        for region, side in zip(memory, sides, strict=True):
            stack.callback(region.close)
            stack.callback(side.close)
            side.start([PoolMemory(region.address, region.nbytes, region.fileno())], LAYOUT)
        np.frombuffer(memory[0].buffer, dtype=np.uint8)[:] = 1
        source, destination = sides
        source.connect("d", destination.address, destination.grant("p"), LAYOUT.num_pages)
        destination.expect(0, KV.layers)
        size = LAYOUT.page_bytes(0)
        copies = PageCopies(
            source_rank=0, destination_rank=0, source_offset=0, destination_offset=0, nbytes=size,
            source_pages=(0,), destination_pages=(2,),
        )  # fmt: skip
        source.arm(LayerWrites(peer="d", slot=0, base=0, copies=(copies,)))
        for _ in range(KV.layers - 1):
            source.counter.add(1)
        assert settle(destination, memory[1], KV.layers - 1, 5.0 if layerwise else 0.3) == before_the_last
        source.counter.add(1)
        assert settle(destination, memory[1], KV.layers, 5.0) == [0, 1, 2, 3]
