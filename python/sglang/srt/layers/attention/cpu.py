"""Paged attention by the native kernels: decode steps read K and V where they lie, without gathering."""

import torch

from sglang.srt.kernels.cpu.ops import CpuKernels
from sglang.srt.kernels.cpu.paged import DecodeRows, PagedKernels
from sglang.srt.kv_pool.base import KVPool
from sglang.srt.layers.attention.base import AttentionBackend, AttentionBatch


class CpuAttention:
    """An AttentionBackend for GQA pools: steps of one query a row are its own, `chunks` takes all others."""

    def __init__(
        self,
        pool: KVPool,
        kernels: CpuKernels,
        chunks: AttentionBackend,
        *,
        heads: int,
        scale: float,
        windows: tuple[int, ...] = (),
    ) -> None:
        """`heads`: query heads of this rank; `scale`: factor on scores before the softmax; `windows`: of each layer,
        how many tokens a query sees (0: all), empty where all layers see all. `chunks` attends over the same pool.
        """
        self._pool = pool
        self._chunks = chunks
        self._windows = windows or (0,) * pool.layout.kv.layers
        self._paged = PagedKernels(kernels, pool.layer(0), heads=heads, scale=scale)
        self._rows: DecodeRows | None = None

    def prepare(self, batch: AttentionBatch) -> None:
        if any(row.length > 1 for row in batch.rows):
            self._rows = None
            self._chunks.prepare(batch)
        else:
            self._rows = DecodeRows(batch.block_table, [row.start + 1 for row in batch.rows])

    def attend(self, layer: int, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        if self._rows is None:
            return self._chunks.attend(layer, q, kv)
        return self._paged.decode(self._pool.layer(layer), q, kv, self._rows, window=self._windows[layer])

    def store(self, layer: int, kv: torch.Tensor) -> None:
        if self._rows is None:
            self._chunks.store(layer, kv)
        else:
            self._paged.store(self._pool.layer(layer), kv, self._rows)
