"""The latent pool's tensors lie where the layout says, on every rank alike."""

import ctypes

import pytest
import torch

from sglang.srt.core.layout import KVLayout, ShardLayout
from sglang.srt.kv_pool.gqa import GQAPool
from sglang.srt.kv_pool.memory import PrivateMemory
from sglang.srt.kv_pool.mla import MLAPool
from sglang.srt.kv_pool.open import open_pool


def layout(dtype: str = "float32", tp_size: int = 1) -> ShardLayout:
    """3 layers, 7 pages of 4 tokens, latents of 10."""
    kv = KVLayout(kind="mla", layers=3, page_size=4, kv_heads=1, head_dim=10, dtype=dtype, model="m")
    return ShardLayout(kv=kv, tp_size=tp_size, num_pages=7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tp_size", [1, 4])
def test_offsets_are_the_layouts(dtype: str, tp_size: int) -> None:
    shard = layout(dtype, tp_size)
    rank = tp_size - 1
    pool = open_pool(shard, rank, PrivateMemory(shard.region_bytes(rank), lambda nbytes: None))
    assert isinstance(pool, MLAPool) and pool.nbytes == 3 * 7 * 4 * 10 * (4 if dtype == "float32" else 2)
    for index in range(3):
        tensor = pool.layer(index)
        assert tensor.shape == (7, 4, 10) and tensor.is_contiguous()
        assert tensor.data_ptr() == pool.address + shard.layer_offset(rank, index)
        assert tensor[1].data_ptr() - tensor[0].data_ptr() == shard.page_bytes(rank)


def test_written_bytes_are_the_regions() -> None:
    shard = layout()
    pool = MLAPool(shard, 0, PrivateMemory(shard.region_bytes(0), lambda nbytes: None))
    pool.layer(2)[6, 3, 9] = 2.5
    assert ctypes.c_float.from_address(pool.address + pool.nbytes - 4).value == 2.5
    pool.poison()
    assert all(bool(torch.isnan(pool.layer(i)).all()) for i in range(3))


def test_a_pool_of_the_wrong_kind_or_size() -> None:
    shard = layout()
    memory = PrivateMemory(shard.region_bytes(0), lambda nbytes: None)
    with pytest.raises(ValueError, match="a GQA pool for a layout of kind mla"):
        GQAPool(shard, 0, memory)
    with pytest.raises(ValueError, match="a region of 3360 bytes for a layout of 6720"):
        MLAPool(ShardLayout(kv=shard.kv, tp_size=1, num_pages=14), 0, memory)
