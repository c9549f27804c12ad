"""Native paged attention at every level that this machine can run, against attention written out in float64."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.core.layout import KVLayout, ShardLayout
from sglang.srt.kernels.cpu.ops import CpuKernels, levels
from sglang.srt.kernels.cpu.paged import DecodeRows, PagedKernels
from sglang.srt.kv_pool.gqa import GQAPool
from sglang.srt.kv_pool.memory import PrivateMemory
from sglang.srt.layers.attention.base import AttentionBatch, AttentionRow
from sglang.srt.layers.attention.cpu import CpuAttention
from sglang.srt.layers.attention.torch_native import TorchNativeAttention

FLOAT, HALF = torch.float32, torch.bfloat16
every_level = pytest.mark.parametrize("level", levels())


def expected(q: torch.Tensor, kv: torch.Tensor, window: int) -> torch.Tensor:
    """One row: q `[heads, dim]`, kv `[keys, 2, kv_heads, dim]` -> `[heads * dim]`, in float64."""
    seen = kv[-window:] if window else kv
    keys, values = (seen[:, part].double().repeat_interleave(len(q) // kv.shape[2], 1) for part in (0, 1))
    scores = torch.einsum("hd,khd->hk", q.double(), keys) * 0.4
    return torch.einsum("hk,khd->hd", scores.softmax(-1), values).flatten()


class Case:
    """Rows of given lengths over shuffled, poisoned pages; all but their last tokens are stored."""

    def __init__(
        self, lengths: list[int], page_size: int, kv_heads: int, group: int, dim: int, dtypes: tuple[torch.dtype, ...]
    ) -> None:
        compute, stored = dtypes
        rng = random.Random(sum(lengths))
        torch.manual_seed(len(lengths) * dim)
        pages_of = [-(-length // page_size) for length in lengths]
        count = sum(pages_of) + 2
        self.pages = torch.full((count, kv_heads, 2, page_size, dim), float("nan"), dtype=stored)
        free = rng.sample(range(count), count)
        self.table = torch.full((len(lengths), max(pages_of) + 1), count + 7, dtype=torch.int32)
        self.history = [torch.randn(length, 2, kv_heads, dim).to(compute).to(stored) for length in lengths]
        self.places: set[tuple[int, int]] = set()
        for row, kv in enumerate(self.history):
            mine = [free.pop() for _ in range(pages_of[row])]
            self.table[row, : len(mine)] = torch.tensor(mine, dtype=torch.int32)
            for token in range(len(kv)):
                page, offset = mine[token // page_size], token % page_size
                self.places.add((page, offset))
                if token < len(kv) - 1:
                    self.pages[page, :, :, offset] = kv[token].transpose(0, 1)
        # Q and KV are slices of one projection, as in the model.
        heads = kv_heads * group
        qkv = torch.randn(len(lengths), heads + 2 * kv_heads, dim).to(compute)
        self.q = qkv[:, :heads]
        self.fresh = qkv[:, heads:].view(len(lengths), 2, kv_heads, dim)
        self.fresh.copy_(torch.stack([kv[-1] for kv in self.history]))
        self.rows = DecodeRows(self.table, lengths)

    def check(self, level: str, window: int) -> None:
        """Attend, and compare outputs and pages."""
        kernels = PagedKernels(CpuKernels(level), self.pages, heads=self.q.shape[1], scale=0.4)
        before = self.pages.clone()
        out = kernels.decode(self.pages, self.q, self.fresh, self.rows, window=window)
        precision = 2**-8 if out.dtype is HALF else 1e-5
        for row, kv in enumerate(self.history):
            wanted = expected(self.q[row], kv, window)
            torch.testing.assert_close(out[row].double(), wanted, rtol=precision, atol=5e-6)
        written = (self.pages != before) & ~(self.pages.isnan() & before.isnan())
        ends = {
            (int(self.table[row, (len(kv) - 1) // self.pages.shape[3]]), (len(kv) - 1) % self.pages.shape[3])
            for row, kv in enumerate(self.history)
        }
        assert {(page, offset) for page, _, _, offset, _ in written.nonzero().tolist()} == ends


@every_level
@given(
    lengths=st.lists(st.one_of(st.integers(1, 40), st.integers(100, 300)), min_size=1, max_size=6),
    page_size=st.sampled_from([1, 2, 3, 16, 64]),
    heads=st.sampled_from([(1, 1), (1, 4), (3, 1), (2, 3), (1, 7), (2, 2)]),
    dim=st.sampled_from([6, 10, 16, 24, 64, 80, 128]),
    window=st.sampled_from([0, 0, 1, 15, 16, 17, 40]),
    dtypes=st.sampled_from([(FLOAT, FLOAT), (HALF, HALF), (FLOAT, HALF), (HALF, FLOAT)]),
)
@settings(max_examples=60, deadline=None)
def test_decode(
    level: str,
    lengths: list[int],
    page_size: int,
    heads: tuple[int, int],
    dim: int,
    window: int,
    dtypes: tuple[torch.dtype, ...],
) -> None:
    Case(lengths, page_size, *heads, dim, dtypes).check(level, window)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_decode_over_threads(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    Case([300, 17, 1, 250], 16, 3, 3, 64, (HALF, HALF)).check(levels()[-1], 0)
    torch.set_num_threads(before)


def test_refuses_what_does_not_fit() -> None:
    case = Case([5, 9], 16, 2, 2, 8, (FLOAT, FLOAT))
    kernels = PagedKernels(CpuKernels("generic"), case.pages, heads=4, scale=1.0)
    with pytest.raises(ValueError, match="for 2 rows of 4 heads"):
        kernels.decode(case.pages, case.q[:, :3], case.fresh, case.rows)
    with pytest.raises(ValueError, match="pages"):
        kernels.decode(case.pages.bfloat16(), case.q, case.fresh, case.rows)
    with pytest.raises(ValueError, match="for 2 rows of"):
        kernels.decode(case.pages, case.q, case.fresh[:1], case.rows)
    with pytest.raises(ValueError, match="without keys"):
        DecodeRows(case.table, [0, 3])


def test_chunks_go_to_the_other_backend_over_the_same_pages() -> None:
    torch.manual_seed(0)
    layout = KVLayout(kind="gqa", layers=2, page_size=4, kv_heads=2, head_dim=8, dtype="float32", model="m")
    shard = ShardLayout(kv=layout, tp_size=1, num_pages=8)

    def backends() -> tuple[GQAPool, TorchNativeAttention]:
        pool = GQAPool(shard, 0, PrivateMemory(shard.region_bytes(0), lambda nbytes: None))
        pool.poison()
        return pool, TorchNativeAttention(pool, heads=4, scale=0.4, windows=(0, 3))

    (pool, other), (expected_pool, reference) = backends(), backends()
    native = CpuAttention(pool, CpuKernels(levels()[-1]), other, heads=4, scale=0.4, windows=(0, 3))
    table = torch.tensor([[5, 2, 7], [1, 0, 6]], dtype=torch.int32)
    for rows in ([(0, 6), (0, 1)], [(6, 1), (1, 1)], [(7, 1), (2, 3)], [(8, 1), (5, 1)]):
        batch = AttentionBatch(
            tuple(AttentionRow(*row) for row in rows),
            table,
            torch.cat([torch.arange(start, start + length) for start, length in rows]),
        )
        native.prepare(batch)
        reference.prepare(batch)
        for layer in (0, 1):
            q, kv = torch.randn(len(batch.positions), 4, 8), torch.randn(len(batch.positions), 2, 2, 8)
            torch.testing.assert_close(native.attend(layer, q, kv), reference.attend(layer, q, kv))
    native.store(0, torch.ones(2, 2, 2, 8))
    reference.store(0, torch.ones(2, 2, 2, 8))
    for layer in (0, 1):
        torch.testing.assert_close(pool.layer(layer), expected_pool.layer(layer), equal_nan=True, rtol=0, atol=0)
