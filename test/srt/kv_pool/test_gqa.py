"""The pool's tensors lie where the layout says."""

import ctypes
from dataclasses import dataclass

import pytest
import torch

from sglang.srt.core.layout import KVLayout, ShardLayout
from sglang.srt.errors import ConfigError
from sglang.srt.kv_pool.gqa import GQAPool
from sglang.srt.kv_pool.memory import MemoryKind, PrivateMemory


def layout(tp_size: int = 1, dtype: str = "float32") -> ShardLayout:
    """3 layers, 7 pages of 4 tokens, 4 heads of 6."""
    kv = KVLayout(kind="gqa", layers=3, page_size=4, kv_heads=4, head_dim=6, dtype=dtype, model="m")
    return ShardLayout(kv=kv, tp_size=tp_size, num_pages=7)


def pool_of(shard: ShardLayout, rank: int = 0) -> GQAPool:
    """A pool over private memory."""
    return GQAPool(shard, rank, PrivateMemory(shard.region_bytes(rank), lambda nbytes: None))


@pytest.mark.parametrize("tp_size", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_offsets_are_the_layouts(tp_size: int, dtype: str) -> None:
    shard = layout(tp_size, dtype)
    pool = pool_of(shard, tp_size - 1)
    heads = len(shard.heads_of(tp_size - 1))
    assert pool.nbytes == shard.region_bytes(tp_size - 1)
    for index in range(3):
        tensor = pool.layer(index)
        assert tensor.shape == (7, heads, 2, 4, 6) and tensor.is_contiguous()
        assert tensor.data_ptr() == pool.address + shard.layer_offset(tp_size - 1, index)
        assert tensor[1].data_ptr() - tensor[0].data_ptr() == shard.page_bytes(tp_size - 1)


def test_written_bytes_are_the_regions() -> None:
    pool = pool_of(layout())
    pool.layer(2)[6, 3, 1, 3, 5] = 2.5
    last = ctypes.c_float.from_address(pool.address + pool.nbytes - 4)
    assert last.value == 2.5
    last.value = 7.0
    assert pool.layer(2)[6, 3, 1, 3, 5] == 7.0


def test_poison_fills_every_layer() -> None:
    pool = pool_of(layout())
    assert all(bool((pool.layer(i) == 0).all()) for i in range(3))
    pool.poison()
    assert all(bool(pool.layer(i).isnan().all()) for i in range(3))


@dataclass
class Region:
    """Memory of the wrong size."""

    buffer: bytearray
    nbytes: int
    address: int = 0


def test_a_region_of_the_wrong_size() -> None:
    with pytest.raises(ValueError, match="a region of 8 bytes"):
        GQAPool(layout(), 0, Region(bytearray(8), 8))


def test_private_memory_reports_progress_and_kind() -> None:
    steps: list[int] = []
    memory = PrivateMemory(600 << 20, steps.append)
    assert sum(steps) == memory.nbytes == 600 << 20 and len(steps) == 3
    assert memory.kind in MemoryKind
    assert not torch.frombuffer(memory.buffer, dtype=torch.int64).any()


def test_impossible_memory() -> None:
    with pytest.raises(ConfigError, match="the system refuses"):
        PrivateMemory(1 << 60, lambda nbytes: None)
