"""The native kernels over paged KV."""

from collections.abc import Sequence

import torch

from sglang.srt.kernels.cpu import _native
from sglang.srt.kernels.cpu.ops import TYPES, CpuKernels


class PagedRows:
    """Some rows of a step: what of them lies in pages, and where their queries stand in the step."""

    def __init__(
        self,
        table: torch.Tensor,
        keys: Sequence[int],
        *,
        first: Sequence[int] | None = None,
        queries: Sequence[int] | None = None,
    ) -> None:
        """`table`: int32 `[rows, pages]`; `keys`: tokens of each row, those of this step included.

        Row i's last `queries[i]` tokens are tokens `first[i]` and up of the step; without both, token i is its only.
        """
        count = len(keys)
        places, lengths = range(count) if first is None else first, [1] * count if queries is None else queries
        if table.dtype is not torch.int32 or table.shape[0] != count or table.stride(1) != 1:
            raise ValueError(f"{table.dtype} block table {list(table.shape)} for {count} rows")
        if not len(places) == len(lengths) == count or any(not 1 <= n <= k for n, k in zip(lengths, keys, strict=True)):
            raise ValueError(f"queries {list(lengths)} of rows of {list(keys)} tokens")
        self.count = count
        self.tokens = sum(lengths)
        self.end = max((place + n for place, n in zip(places, lengths, strict=True)), default=0)
        """The step has at least so many tokens."""
        self.single = max(lengths, default=1) == 1
        self.all_keys = sum(keys)
        columns = torch.tensor([list(keys), list(places), list(lengths)], dtype=torch.int32)
        self._held = (table, columns)
        starts = [columns[column].data_ptr() for column in range(3)]
        self.arguments = (table.data_ptr(), table.stride(0), *starts, count, self.tokens)


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

    def has_chunks(self, dtype: torch.dtype) -> bool:
        """Whether `attend` takes rows of several queries of this type: bfloat16 alone, heads of 32 n."""
        return self._native.chunks and dtype is torch.bfloat16

    def store(self, pages: torch.Tensor, kv: torch.Tensor, rows: PagedRows) -> None:
        """Put the rows' tokens of `kv` `[tokens, 2, kv_heads, head_dim]`, rounded to the pages' type, into pages."""
        self._check(pages)
        if kv.shape[0] < rows.end or kv.shape[1:] != self._kv or kv.dtype not in TYPES:
            raise ValueError(f"{kv.dtype} {list(kv.shape)} for {rows.end} tokens of {self._kv}")
        if kv.stride()[1:] != self._kv_strides:
            raise ValueError(f"K and V of {self._kv} with strides {kv.stride()}")
        self._native.store(pages.data_ptr(), kv.data_ptr(), kv.stride(0), kv.dtype is torch.bfloat16, *rows.arguments)

    def attend(
        self, pages: torch.Tensor, q: torch.Tensor, rows: PagedRows, out: torch.Tensor, *, window: int = 0
    ) -> None:
        """Causal attention of the rows' queries, whose K and V are stored.

        `q` `[tokens, heads, head_dim]` of the step, `out` `[tokens, heads * head_dim]` of its type, of which only the
        rows' tokens are written. With a `window` a query sees that many tokens, its own the last. Pages may hold
        anything beyond a row's end.
        """
        self._check(pages)
        heads, dim = self._q
        if q.shape[0] < rows.end or q.shape[1:] != self._q or q.dtype not in TYPES or q.stride()[1:] != (dim, 1):
            raise ValueError(f"{q.dtype} {list(q.shape)} for {rows.end} tokens of {heads} heads")
        if out.shape != (q.shape[0], heads * dim) or out.dtype is not q.dtype or not out.is_contiguous():
            raise ValueError(f"{out.dtype} output {list(out.shape)} for queries {list(q.shape)} of {q.dtype}")
        place = (pages.data_ptr(), q.data_ptr(), q.stride(0), out.data_ptr())
        if rows.single:
            self._native.decode(*place, q.dtype is torch.bfloat16, window, rows.all_keys, *rows.arguments)
        elif self.has_chunks(q.dtype):
            self._native.chunk(*place, window, *rows.arguments)
        else:
            raise ValueError(f"no kernel for rows of several {q.dtype} queries over {pages.dtype} pages of {dim}")

    def _check(self, pages: torch.Tensor) -> None:
        if (pages.shape[1:], pages.dtype) != self._layer or not pages.is_contiguous():
            raise ValueError(f"{pages.dtype} pages {list(pages.shape)} in place of {self._layer}")
