"""Attention over paged latents by torch's own operations.

Short rows, decoding above all, are absorbed: their queries attend to latents as if those were the keys and values of a
single head, so nothing of the size heads x context is ever made. Long rows expand keys and values, of their own tokens
at once and of their cached prefix piece by piece; pieces are merged by their softmax sums.
"""

import torch
from torch.nn import functional as F

from sglang.srt.kernels.flash import flash, merge
from sglang.srt.kernels.gather_kv import gather_kv
from sglang.srt.kernels.store_latent import latent_rows, store_latent
from sglang.srt.kv_pool.base import KVPool
from sglang.srt.layers.attention.base import AttentionBatch
from sglang.srt.layers.attention.latent import LatentHeads, LatentShape
from sglang.srt.layers.attention.torch_native_plan import ChunkPlan, DecodeGroup, StepPlanner

PREFIX_TOKENS = 1024
"""Cached tokens whose keys and values are expanded at a time: 80 MB at DeepSeek-V3's size in bfloat16."""


class TorchNativeMLA:
    """An AttentionBackend for MLA pools on CPU. `q` is `[tokens, heads, nope + rope]`, `kv` `[tokens, latent_dim]`."""

    def __init__(self, pool: KVPool, *, heads: tuple[LatentHeads, ...], scale: float) -> None:
        """`heads`: one a layer; `scale`: factor on scores before the softmax."""
        kv = pool.layout.kv
        self._pool = pool
        self._heads = heads
        self._shape: LatentShape = heads[0].shape
        self._latent = kv.head_dim
        self._page_size = kv.page_size
        self._scale = scale
        self._planner = StepPlanner(1, kv.page_size)
        self._scratch = torch.empty(0, kv.page_size * kv.head_dim, dtype=pool.layer(0).dtype)
        self._store_rows = torch.empty(0, dtype=torch.int64)
        self._decodes: list[DecodeGroup] = []
        self._chunks: list[ChunkPlan] = []

    def prepare(self, batch: AttentionBatch) -> None:
        lengths = torch.tensor([row.length for row in batch.rows])
        owner = torch.repeat_interleave(torch.arange(len(batch.rows)), lengths)
        pages = batch.block_table[owner, batch.positions // self._page_size].to(torch.int64)
        self._store_rows = latent_rows(pages, batch.positions % self._page_size, page_size=self._page_size)
        self._decodes, self._chunks = self._planner.plan(batch)
        blocks = [len(group.blocks) for group in self._decodes] + [len(chunk.blocks) for chunk in self._chunks]
        if max(blocks, default=0) > self._scratch.shape[0]:
            self._scratch = self._scratch.new_empty(1 << (max(blocks) - 1).bit_length(), self._scratch.shape[1])

    def store(self, layer: int, kv: torch.Tensor) -> None:
        store_latent(self._pool.layer(layer), self._store_rows, kv)

    def attend(self, layer: int, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        pages, heads = self._pool.layer(layer), self._heads[layer]
        store_latent(pages, self._store_rows, kv)
        if len(self._decodes) == 1 and not self._chunks:
            return self._decode(pages, q, heads, self._decodes[0])
        out = q.new_empty(q.shape[0], self._shape.heads * self._shape.v)
        for group in self._decodes:
            out[group.tokens] = self._decode(pages, q[group.tokens], heads, group)
        # Chunks see latents as the cache holds them, so that it does not matter where a prompt was cut.
        fresh = kv.to(pages.dtype).to(q.dtype)
        for chunk in self._chunks:
            short = chunk.tokens.stop - chunk.tokens.start < self._shape.break_even
            run = self._absorbed_chunk if short and chunk.start else self._expanded_chunk
            out[chunk.tokens] = run(pages, q[chunk.tokens], fresh[chunk.tokens], heads, chunk)
        return out

    def _decode(self, pages: torch.Tensor, q: torch.Tensor, heads: LatentHeads, group: DecodeGroup) -> torch.Tensor:
        """One query a row, `[rows, heads, nope + rope]` -> `[rows, heads * v]`. Heads stand in for queries."""
        latents = self._gather(pages, group.blocks, q.shape[0], q.dtype)
        if group.stale is not None:
            # A masked score hides a stale latent only while it is finite: 0 * NaN is NaN.
            latents.view(-1, self._latent).index_fill_(0, group.stale, 0.0)
        keys = latents[:, : group.longest].unsqueeze(1)
        mask = group.mask(q.dtype, self._shape.heads)
        out = F.scaled_dot_product_attention(
            self._absorb(q, heads).unsqueeze(1), keys, keys, attn_mask=mask, scale=self._scale
        )
        return heads.values(out.squeeze(1)[..., : self._shape.rank]).reshape(q.shape[0], -1)

    def _absorbed_chunk(
        self, pages: torch.Tensor, q: torch.Tensor, fresh: torch.Tensor, heads: LatentHeads, chunk: ChunkPlan
    ) -> torch.Tensor:
        """Few queries on a cached prefix: both are attended as latents; `[tokens, heads * v]`."""
        tokens = q.shape[0]
        queries = self._absorb(q, heads).transpose(0, 1).unsqueeze(0)
        shape = (1, self._shape.heads, -1, self._latent)
        before = self._gather(pages, chunk.blocks, 1, q.dtype)[:, : chunk.start].expand(shape)
        own = fresh.unsqueeze(0).expand(shape)
        out, _ = merge(
            *flash(queries, own, own, scale=self._scale, causal=True),
            *flash(queries, before, before, scale=self._scale),
        )
        return heads.values(out[0].transpose(0, 1)[..., : self._shape.rank]).reshape(tokens, -1)

    def _expanded_chunk(
        self, pages: torch.Tensor, q: torch.Tensor, fresh: torch.Tensor, heads: LatentHeads, chunk: ChunkPlan
    ) -> torch.Tensor:
        """Many queries: keys and values of all heads are made, PREFIX_TOKENS at a time; `[tokens, heads * v]`."""
        queries = self._padded(q.transpose(0, 1)).unsqueeze(0)
        out, sums = flash(queries, *self._expand(fresh, heads), scale=self._scale, causal=True)
        if chunk.start:
            before = self._gather(pages, chunk.blocks, 1, q.dtype)[0]
            for first in range(0, chunk.start, PREFIX_TOKENS):
                piece = before[first : min(first + PREFIX_TOKENS, chunk.start)]
                out, sums = merge(out, sums, *flash(queries, *self._expand(piece, heads), scale=self._scale))
        return out[0, :, :, : self._shape.v].transpose(0, 1).reshape(q.shape[0], -1)

    def _expand(self, latents: torch.Tensor, heads: LatentHeads) -> tuple[torch.Tensor, torch.Tensor]:
        """`[tokens, latent_dim]` -> K and V, both `[1, heads, tokens, width]`."""
        keys, values = heads.expand(latents[:, : self._shape.rank])
        rotated = latents[:, None, self._shape.rank :].expand(-1, self._shape.heads, -1)
        k = self._padded(torch.cat((keys, rotated), dim=-1).transpose(0, 1))
        return k.unsqueeze(0), self._padded(values.transpose(0, 1)).unsqueeze(0)

    def _padded(self, x: torch.Tensor) -> torch.Tensor:
        """Zeros up to the width of K or V, whichever is wider: flash attention wants them equal."""
        missing = max(self._shape.qk, self._shape.v) - x.shape[-1]
        return F.pad(x, (0, missing)) if missing else x

    def _absorb(self, q: torch.Tensor, heads: LatentHeads) -> torch.Tensor:
        """`[tokens, heads, nope + rope]` -> `[tokens, heads, latent_dim]`."""
        return torch.cat((heads.absorb(q[..., : self._shape.nope]), q[..., self._shape.nope :]), dim=-1)

    def _gather(self, pages: torch.Tensor, blocks: torch.Tensor, rows: int, dtype: torch.dtype) -> torch.Tensor:
        """Whole pages of `rows` rows, `[rows, tokens, latent_dim]` in scratch memory."""
        out = self._scratch[: len(blocks)]
        gather_kv(pages, blocks, out)
        return out.view(rows, -1, self._latent).to(dtype)
