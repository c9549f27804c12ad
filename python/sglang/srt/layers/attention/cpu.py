"""Paged attention by the native kernels: K and V are read where they lie, without gathering."""

from itertools import accumulate

import torch

from sglang.srt.kernels.cpu.ops import CpuKernels
from sglang.srt.kernels.cpu.paged import PagedKernels, PagedRows
from sglang.srt.kv_pool.base import KVPool
from sglang.srt.layers.attention.base import AttentionBackend, AttentionBatch


class CpuAttention:
    """An AttentionBackend for GQA pools.

    Rows of one query are its own, and so are chunks where the kernels have them (bfloat16). Any other step
    with a chunk goes to `chunks` as a whole.
    """

    def __init__(
        self,
        pool: KVPool,
        kernels: CpuKernels,
        chunks: AttentionBackend,
        *,
        heads: int,
        scale: float,
        dtype: torch.dtype,
        windows: tuple[int, ...] = (),
    ) -> None:
        """`heads`: query heads of this rank; `scale`: factor on scores before the softmax; `dtype`: of queries;
        `windows`: of each layer, how many tokens a query sees (0: all), empty where all layers see all. `chunks`
        attends over the same pool.
        """
        self._pool = pool
        self._chunks = chunks
        self._windows = windows or (0,) * pool.layout.kv.layers
        self._paged = PagedKernels(kernels, pool.layer(0), heads=heads, scale=scale)
        self._has_chunks = self._paged.has_chunks(dtype)
        self._rows: tuple[PagedRows, ...] = ()

    def prepare(self, batch: AttentionBatch) -> None:
        longer = [index for index, row in enumerate(batch.rows) if row.length > 1]
        if not longer:
            self._rows = (single_rows(batch),)
        elif self._has_chunks:
            single = [index for index, row in enumerate(batch.rows) if row.length == 1]
            self._rows = tuple(_part(batch, members) for members in (single, longer) if members)
        else:
            self._rows = ()
            self._chunks.prepare(batch)

    def attend(self, layer: int, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        if not self._rows:
            return self._chunks.attend(layer, q, kv)
        pages, window = self._pool.layer(layer), self._windows[layer]
        out = q.new_empty(q.shape[0], q.shape[1] * q.shape[2])
        for rows in self._rows:
            self._paged.store(pages, kv, rows)
            self._paged.attend(pages, q, rows, out, window=window)
        return out

    def store(self, layer: int, kv: torch.Tensor) -> None:
        if not self._rows:
            self._chunks.store(layer, kv)
        for rows in self._rows:
            self._paged.store(self._pool.layer(layer), kv, rows)


def single_rows(batch: AttentionBatch) -> PagedRows:
    """A step of rows of one query each."""
    return PagedRows(batch.block_table, [row.start + 1 for row in batch.rows])


def _part(batch: AttentionBatch, members: list[int]) -> PagedRows:
    """Some rows of a step."""
    ends = list(accumulate(row.length for row in batch.rows))
    lengths = [batch.rows[index].length for index in members]
    return PagedRows(
        batch.block_table[members],
        [batch.rows[index].start + batch.rows[index].length for index in members],
        first=[ends[index] - batch.rows[index].length for index in members],
        queries=lengths,
    )
