"""Paged attention against attention written out, over poisoned pages."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.core.layout import KVLayout, ShardLayout
from sglang.srt.kv_pool.gqa import GQAPool
from sglang.srt.kv_pool.memory import PrivateMemory
from sglang.srt.layers.attention.base import AttentionBatch, AttentionRow
from sglang.srt.layers.attention.torch_native import TorchNativeAttention

DIM = 6
rows = st.lists(st.tuples(st.integers(0, 70), st.one_of(st.just(1), st.integers(1, 20))), min_size=1, max_size=9)


def written_out(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, start: int, window: int = 0) -> torch.Tensor:
    """q `[tokens, heads, dim]`, keys and values `[all, kv_heads, dim]` -> `[tokens, heads * dim]`, in float64."""
    q, keys, values = q.double(), keys.double(), values.double()
    group = q.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q, keys) * 0.4
    distance = start + torch.arange(q.shape[0]).unsqueeze(1) - torch.arange(keys.shape[0])
    hidden = (distance < 0) | (distance >= (window or keys.shape[0]))
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), values).flatten(1)


@given(
    rows,
    st.sampled_from([1, 2, 3, 16, 64]),
    st.sampled_from([(1, 1), (1, 4), (3, 1), (2, 3)]),
    st.sampled_from([0, 0, 1, 2, 15, 16, 17, 40]),
    st.integers(0, 1 << 30),
)
@settings(max_examples=200, deadline=None)
def test_any_mix_of_rows(
    shape: list[tuple[int, int]], page_size: int, heads: tuple[int, int], window: int, seed: int
) -> None:
    check(shape, page_size, heads, window, seed)


@pytest.mark.parametrize("window", [1, 40, 600, 1200])
@pytest.mark.parametrize("shape", [[(0, 1300)], [(700, 1100), (3, 1)]])
def test_bands_longer_than_the_kernels_blocks(shape: list[tuple[int, int]], window: int) -> None:
    """Whole blocks of masked keys come before those that a query sees."""
    check(shape, 16, (1, 2), window, 0)


def check(shape: list[tuple[int, int]], page_size: int, heads: tuple[int, int], window: int, seed: int) -> None:
    """Rows (start, length) attend in layer 1 as attention written out does; layer 0 sees everything."""
    kv_heads, group = heads
    rng = random.Random(seed)
    torch.manual_seed(seed)
    pages_of = [-(-(start + length) // page_size) for start, length in shape]
    layout = KVLayout(
        kind="gqa", layers=2, page_size=page_size, kv_heads=kv_heads, head_dim=DIM, dtype="float32", model="m"
    )
    shard = ShardLayout(kv=layout, tp_size=1, num_pages=sum(pages_of) + 2)
    pool = GQAPool(shard, 0, PrivateMemory(shard.region_bytes(0), lambda nbytes: None))
    pool.poison()
    free = rng.sample(range(shard.num_pages), shard.num_pages)
    table = torch.full((len(shape), max(pages_of) + 1), shard.num_pages + 7, dtype=torch.int32)
    history = []
    for index, (start, length) in enumerate(shape):
        mine = [free.pop() for _ in range(pages_of[index])]
        table[index, : len(mine)] = torch.tensor(mine, dtype=torch.int32)
        kv = torch.randn(start + length, 2, kv_heads, DIM)
        history.append(kv)
        for token in range(start):
            pool.layer(1)[mine[token // page_size], :, :, token % page_size] = kv[token].transpose(0, 1)
    backend = TorchNativeAttention(pool, heads=kv_heads * group, scale=0.4, windows=(0, window))
    positions = torch.cat([torch.arange(start, start + length) for start, length in shape])
    backend.prepare(AttentionBatch(tuple(AttentionRow(*row) for row in shape), table, positions))
    q = torch.randn(len(positions), kv_heads * group, DIM)
    fresh = torch.cat([kv[start:] for kv, (start, _) in zip(history, shape, strict=True)])
    out = backend.attend(1, q, fresh)
    first = 0
    for kv, (start, length) in zip(history, shape, strict=True):
        expected = written_out(q[first : first + length], kv[:, 0], kv[:, 1], start, window)
        torch.testing.assert_close(out[first : first + length].double(), expected, rtol=1e-4, atol=1e-5)
        first += length
    assert bool(pool.layer(0).isnan().all())
