"""Native paged attention at every level that this machine can run, against attention written out in float64."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.core.layout import KVLayout, ShardLayout
from sglang.srt.kernels.cpu.ops import CpuKernels, levels
from sglang.srt.kernels.cpu.paged import PagedKernels, PagedRows
from sglang.srt.kv_pool.gqa import GQAPool
from sglang.srt.kv_pool.memory import PrivateMemory
from sglang.srt.layers.attention.base import AttentionBatch, AttentionRow
from sglang.srt.layers.attention.cpu import CpuAttention
from sglang.srt.layers.attention.torch_native import TorchNativeAttention

FLOAT, HALF = torch.float32, torch.bfloat16
every_level = pytest.mark.parametrize("level", levels())


def expected(q: torch.Tensor, kv: torch.Tensor, window: int, scale: float = 0.4) -> torch.Tensor:
    """One row: q `[heads, dim]`, kv `[keys, 2, kv_heads, dim]` -> `[heads * dim]`, in float64."""
    seen = kv[-window:] if window else kv
    keys, values = (seen[:, part].double().repeat_interleave(len(q) // kv.shape[2], 1) for part in (0, 1))
    scores = torch.einsum("hd,khd->hk", q.double(), keys) * scale
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
        self.rows = PagedRows(self.table, lengths)

    def check(self, level: str, window: int) -> None:
        """Attend, and compare outputs and pages."""
        kernels = PagedKernels(CpuKernels(level), self.pages, heads=self.q.shape[1], scale=0.4)
        before = self.pages.clone()
        out = self.q.new_full((len(self.q), self.q.shape[1] * self.q.shape[2]), float("nan"))
        kernels.store(self.pages, self.fresh, self.rows)
        kernels.attend(self.pages, self.q, self.rows, out, window=window)
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


class ChunkCase:
    """A step of rows with a cached prefix and several queries each, between tokens that belong to nobody."""

    def __init__(self, rows: list[tuple[int, int]], page_size: int, kv_heads: int, group: int, dim: int) -> None:
        rng = random.Random(sum(map(sum, rows)))
        torch.manual_seed(dim + len(rows))
        keys = [start + length for start, length in rows]
        pages_of = [-(-count // page_size) for count in keys]
        self.pages = torch.full((sum(pages_of) + 2, kv_heads, 2, page_size, dim), float("nan"), dtype=HALF)
        free = rng.sample(range(sum(pages_of) + 2), sum(pages_of) + 2)
        table = torch.full((len(rows), max(pages_of) + 1), 1 << 30, dtype=torch.int32)
        self.kv = [torch.randn(count, 2, kv_heads, dim).to(HALF) for count in keys]
        first, place = [], 1
        for row, (start, length) in enumerate(rows):
            mine = [free.pop() for _ in range(pages_of[row])]
            table[row, : len(mine)] = torch.tensor(mine, dtype=torch.int32)
            for token in range(start):
                self.pages[mine[token // page_size], :, :, token % page_size] = self.kv[row][token].transpose(0, 1)
            first.append(place)
            place += length + 1
        self.qkv = torch.randn(place, group * kv_heads + 2 * kv_heads, dim).to(HALF)
        self.q = self.qkv[:, : group * kv_heads]
        self.fresh = self.qkv[:, group * kv_heads :].view(place, 2, kv_heads, dim)
        for row, (start, length) in enumerate(rows):
            self.fresh[first[row] : first[row] + length] = self.kv[row][start:]
        self.steps = list(zip(first, rows, strict=True))
        self.rows = PagedRows(table, keys, first=first, queries=[length for _, length in rows])

    def check(self, level: str, window: int) -> None:
        """Every query against float64, and nothing else written."""
        kernels = PagedKernels(CpuKernels(level), self.pages, heads=self.q.shape[1], scale=0.2)
        out = torch.full((len(self.q), self.q.shape[1] * self.q.shape[2]), 7.0, dtype=HALF)
        kernels.store(self.pages, self.fresh, self.rows)
        kernels.attend(self.pages, self.q, self.rows, out, window=window)
        mine = torch.zeros(len(out), dtype=torch.bool)
        for row, (first, (start, length)) in enumerate(self.steps):
            mine[first : first + length] = True
            wanted = [expected(self.q[first + i], self.kv[row][: start + i + 1], window, 0.2) for i in range(length)]
            # With bfloat16 products weights are rounded before they multiply V, as torch's own attention does it.
            rounded = level.startswith(("avx512", "amx"))
            precision = {"rtol": 2**-7, "atol": 2**-8 * 2} if rounded else {"rtol": 2**-8, "atol": 5e-6}
            torch.testing.assert_close(out[first : first + length].double(), torch.stack(wanted), **precision)
        assert bool((out[~mine] == 7.0).all())


@every_level
@given(
    rows=st.lists(st.tuples(st.sampled_from([0, 0, 1, 5, 64, 150]), st.integers(1, 140)), min_size=1, max_size=3),
    page_size=st.sampled_from([1, 3, 16, 64]),
    heads=st.sampled_from([(1, 1), (1, 4), (3, 1), (2, 3), (1, 7), (2, 2), (1, 65)]),
    dim=st.sampled_from([32, 64, 96, 128]),
    window=st.sampled_from([0, 0, 1, 15, 40, 97]),
)
@settings(max_examples=25, deadline=None)
def test_chunk(
    level: str, rows: list[tuple[int, int]], page_size: int, heads: tuple[int, int], dim: int, window: int
) -> None:
    rows[0] = (rows[0][0], max(rows[0][1], 2))
    ChunkCase(rows, page_size, *heads, dim).check(level, window)


@every_level
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_chunk_over_threads(level: str, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    ChunkCase([(100, 200), (0, 3)], 16, 4, 2, 64).check(level, 0)
    torch.set_num_threads(before)


def test_refuses_what_does_not_fit() -> None:
    case = Case([5, 9], 16, 2, 2, 8, (FLOAT, FLOAT))
    kernels = PagedKernels(CpuKernels("generic"), case.pages, heads=4, scale=1.0)
    out = torch.empty(2, 32)
    with pytest.raises(ValueError, match="for 2 tokens of 4 heads"):
        kernels.attend(case.pages, case.q[:, :3], case.rows, out)
    with pytest.raises(ValueError, match="pages"):
        kernels.attend(case.pages.bfloat16(), case.q, case.rows, out)
    with pytest.raises(ValueError, match="output"):
        kernels.attend(case.pages, case.q, case.rows, out[:1])
    with pytest.raises(ValueError, match="for 2 tokens of"):
        kernels.store(case.pages, case.fresh[:1], case.rows)
    with pytest.raises(ValueError, match="of rows of"):
        PagedRows(case.table, [0, 3])
    with pytest.raises(ValueError, match="of rows of"):
        PagedRows(case.table, [5, 9], first=[0, 1], queries=[1, 10])
    longer = PagedRows(case.table, [5, 9], first=[0, 1], queries=[1, 2])
    with pytest.raises(ValueError, match="no kernel for rows of several"):
        kernels.attend(case.pages, torch.empty(3, 4, 8), longer, torch.empty(3, 32))


@every_level
def test_mixed_steps_are_native_in_bfloat16(level: str) -> None:
    """Decode rows and chunks in one step, against torch's backend over a pool of its own."""
    torch.manual_seed(0)
    layout = KVLayout(kind="gqa", layers=1, page_size=4, kv_heads=2, head_dim=32, dtype="bfloat16", model="m")
    shard = ShardLayout(kv=layout, tp_size=1, num_pages=8)
    pools = [GQAPool(shard, 0, PrivateMemory(shard.region_bytes(0), lambda nbytes: None)) for _ in range(2)]
    for pool in pools:
        pool.poison()
    native = CpuAttention(pools[0], CpuKernels(level), Unused(), heads=4, scale=0.2, dtype=HALF)
    reference = TorchNativeAttention(pools[1], heads=4, scale=0.2)
    table = torch.tensor([[5, 2, 7], [1, 0, 6]], dtype=torch.int32)
    for rows in ([(0, 6), (0, 1)], [(6, 1), (1, 1)], [(7, 1), (2, 3)], [(8, 2), (5, 1)]):
        positions = torch.cat([torch.arange(start, start + length) for start, length in rows])
        batch = AttentionBatch(tuple(AttentionRow(*row) for row in rows), table, positions)
        native.prepare(batch)
        reference.prepare(batch)
        q, kv = torch.randn(len(positions), 4, 32).to(HALF), torch.randn(len(positions), 2, 2, 32).to(HALF)
        torch.testing.assert_close(native.attend(0, q, kv), reference.attend(0, q, kv), rtol=2**-6, atol=2**-6)
        torch.testing.assert_close(pools[0].layer(0), pools[1].layer(0), equal_nan=True, rtol=0, atol=0)


class Unused:
    """A backend that nothing may reach."""

    def prepare(self, batch: AttentionBatch) -> None:
        raise AssertionError(batch)

    def attend(self, layer: int, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        raise AssertionError(layer)

    def store(self, layer: int, kv: torch.Tensor) -> None:
        raise AssertionError(layer)


def test_chunks_go_to_the_other_backend_over_the_same_pages() -> None:
    torch.manual_seed(0)
    layout = KVLayout(kind="gqa", layers=2, page_size=4, kv_heads=2, head_dim=8, dtype="float32", model="m")
    shard = ShardLayout(kv=layout, tp_size=1, num_pages=8)

    def backends() -> tuple[GQAPool, TorchNativeAttention]:
        pool = GQAPool(shard, 0, PrivateMemory(shard.region_bytes(0), lambda nbytes: None))
        pool.poison()
        return pool, TorchNativeAttention(pool, heads=4, scale=0.4, windows=(0, 3))

    (pool, other), (expected_pool, reference) = backends(), backends()
    native = CpuAttention(pool, CpuKernels(levels()[-1]), other, heads=4, scale=0.4, dtype=FLOAT, windows=(0, 3))
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
