"""The native kernels over paged KV."""

from collections.abc import Sequence

import torch

from sglang.srt.kernels.cpu import _native
from sglang.srt.kernels.cpu.ops import TYPES, CpuKernels


class DecodeRows:
    """A step whose rows have one query each: row i's query is token i."""

    def __init__(self, table: torch.Tensor, keys: Sequence[int]) -> None:
        """`table`: int32 `[rows, pages]`; `keys`: tokens of each row, its query's own included."""
        if table.dtype is not torch.int32 or table.shape[0] != len(keys) or table.stride(1) != 1:
            raise ValueError(f"{table.dtype} block table {list(table.shape)} for {len(keys)} rows")
        if min(keys) < 1:
            raise ValueError(f"a row without keys: {list(keys)}")
        self.count = len(keys)
        self.all_keys = sum(keys)
        self.longest = max(keys)
        self._table = table
        self._keys = torch.tensor(keys, dtype=torch.int32)
        self.arguments = (table.data_ptr(), table.stride(0), self._keys.data_ptr(), self.count)


class PagedKernels:
    """Store and attend over pages `[num_pages, kv_heads, 2, page_size, head_dim]` of one geometry."""

    def __init__(self, kernels: CpuKernels, pages: torch.Tensor, *, heads: int, scale: float) -> None:
        """`pages`: any layer of the pool; `heads`: query heads; `scale`: factor on scores before the softmax."""
        _, kv_heads, _, page_size, dim = pages.shape
        if pages.dtype not in TYPES or heads % kv_heads:
            raise ValueError(f"no kernels for {heads} heads over {pages.dtype} pages of {kv_heads} heads")
        self._layer = (pages.shape[1:], pages.dtype)
        self._page_size = page_size
        self._q = (heads, dim)
        self._kv = (2, kv_heads, dim)
        self._kv_strides = (kv_heads * dim, dim, 1)
        self._native = _native.PagedKernels(
            kernels.native, heads, kv_heads, page_size, dim, scale, pages.dtype is torch.bfloat16
        )

    def store(self, pages: torch.Tensor, kv: torch.Tensor, rows: DecodeRows) -> None:
        """Put `kv` `[rows, 2, kv_heads, head_dim]`, rounded to the pages' type, where each row's last token belongs."""
        self._check(pages, kv, rows)
        self._native.store(pages.data_ptr(), kv.data_ptr(), kv.stride(0), kv.dtype is torch.bfloat16, *rows.arguments)

    def decode(
        self, pages: torch.Tensor, q: torch.Tensor, kv: torch.Tensor, rows: DecodeRows, *, window: int = 0
    ) -> torch.Tensor:
        """Store `kv`, then attend: `q` `[rows, heads, head_dim]` -> `[rows, heads * head_dim]`.

        With a `window`, each query sees that many of its row's last tokens. Pages may hold anything beyond a row's end.
        """
        self._check(pages, kv, rows)
        if q.shape != (rows.count, *self._q) or q.dtype is not kv.dtype or q.stride()[1:] != (self._q[1], 1):
            raise ValueError(f"{q.dtype} {list(q.shape)} for {rows.count} rows of {self._q[0]} heads")
        out = q.new_empty(rows.count, self._q[0] * self._q[1])
        self._native.decode(
            pages.data_ptr(), q.data_ptr(), q.stride(0), kv.data_ptr(), kv.stride(0), out.data_ptr(),
            q.dtype is torch.bfloat16, *rows.arguments, rows.all_keys, window,
        )  # fmt: skip
        return out

    def _check(self, pages: torch.Tensor, kv: torch.Tensor, rows: DecodeRows) -> None:
        if (pages.shape[1:], pages.dtype) != self._layer or not pages.is_contiguous():
            raise ValueError(f"{pages.dtype} pages {list(pages.shape)} in place of {self._layer}")
        if kv.shape != (rows.count, *self._kv) or kv.dtype not in TYPES or kv.stride()[1:] != self._kv_strides:
            raise ValueError(f"{kv.dtype} {list(kv.shape)} for {rows.count} rows of {self._kv}")
