"""How the torch backend spreads a step's rows over calls. Computed once a step; nothing here depends on the layer."""

from typing import NamedTuple

import torch

from sglang.srt.kernels.gather_kv import gather_rows
from sglang.srt.layers.attention.base import AttentionBatch, AttentionRow

GROUP_SLACK = 1.25
"""Rows share a call while the longest has at most this many times the pages of the shortest, plus one."""
GROUP_TOKENS = 65536
"""Tokens gathered by one call at most, so that the scratch memory of a wide batch stays bounded."""


class DecodeGroup(NamedTuple):
    """Rows of one query each that share a call."""

    tokens: torch.Tensor
    """int64 `[rows]`: where their queries stand in the step."""
    blocks: torch.Tensor
    """For gather_kv; short rows repeat their last page."""
    longest: int
    """Keys of the longest row."""
    bias: torch.Tensor | None
    """float32 `[rows, 1, 1, longest]`, 0 or -inf; None where all rows are equally long."""
    stale: torch.Tensor | None
    """Rows of `head_dim` elements of the gathered memory that belong to no key; None where there is none to read."""

    def mask(self, dtype: torch.dtype, group: int) -> torch.Tensor | None:
        """The bias as attention takes it, `[rows, 1, group, longest]`."""
        if self.bias is None:
            return None
        return self.bias.to(dtype).expand(-1, 1, group, -1)


class ChunkPlan(NamedTuple):
    """One row of several queries."""

    tokens: slice
    start: int
    """Cached tokens before the chunk."""
    blocks: torch.Tensor
    """For gather_kv: the pages of the cached tokens; empty where there are none."""


class StepPlanner:
    """Plans for one geometry."""

    def __init__(self, planes: int, page_size: int) -> None:
        """`planes`: blocks a page, 2 a KV head or 1 of a latent."""
        self._planes = planes
        self._page_size = page_size

    def plan(self, batch: AttentionBatch) -> tuple[list[DecodeGroup], list[ChunkPlan]]:
        """Groups for the rows of one token, one plan for each longer row."""
        singles: list[tuple[int, int, int]] = []
        chunks: list[ChunkPlan] = []
        first = 0
        for index, row in enumerate(batch.rows):
            if row.length == 1:
                singles.append((row.start + 1, index, first))
            else:
                chunks.append(self._chunk(row, batch.block_table[index], first))
            first += row.length
        return [self._group(members, batch.block_table) for members in self._split(singles)], chunks

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._page_size)

    def _chunk(self, row: AttentionRow, pages: torch.Tensor, first: int) -> ChunkPlan:
        blocks = gather_rows(pages[: self._pages(row.start)].unsqueeze(0), self._planes)
        return ChunkPlan(slice(first, first + row.length), row.start, blocks)

    def _split(self, singles: list[tuple[int, int, int]]) -> list[list[tuple[int, int, int]]]:
        """Rows of similar length together; in the step's order where one group takes them all."""
        groups: list[list[tuple[int, int, int]]] = []
        for single in sorted(singles, reverse=True):
            longest = self._pages(groups[-1][0][0]) if groups else 0
            fits = groups and (len(groups[-1]) + 1) * longest * self._page_size <= GROUP_TOKENS
            if fits and longest <= GROUP_SLACK * self._pages(single[0]) + 1:
                groups[-1].append(single)
            else:
                groups.append([single])
        return [sorted(group, key=lambda single: single[2]) for group in groups]

    def _group(self, members: list[tuple[int, int, int]], block_table: torch.Tensor) -> DecodeGroup:
        lengths = torch.tensor([keys for keys, _, _ in members])
        longest = max(keys for keys, _, _ in members)
        width = self._pages(longest)
        last = (lengths.unsqueeze(1) - 1) // self._page_size
        rows = torch.tensor([index for _, index, _ in members]).unsqueeze(1)
        pages = block_table[rows, torch.minimum(torch.arange(width).unsqueeze(0), last)]
        tokens = torch.tensor([token for _, _, token in members])
        blocks = gather_rows(pages, self._planes)
        if bool((lengths == longest).all()):
            return DecodeGroup(tokens, blocks, longest, None, None)
        beyond = torch.arange(width * self._page_size).unsqueeze(0) >= lengths.unsqueeze(1)
        bias = torch.zeros(len(members), longest).masked_fill_(beyond[:, :longest], float("-inf"))
        return DecodeGroup(tokens, blocks, longest, bias.view(-1, 1, 1, longest), self._stale(beyond))

    def _stale(self, beyond: torch.Tensor) -> torch.Tensor:
        """The gathered (row, plane, token) whose token is beyond its row; `beyond`: bool `[rows, tokens]`."""
        rows, tokens = beyond.shape
        return beyond.unsqueeze(1).expand(rows, self._planes, tokens).flatten().nonzero().flatten()
