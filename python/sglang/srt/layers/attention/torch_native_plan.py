"""How the torch backend spreads a step's rows over calls. Computed once a step; nothing here depends on the layer."""

from typing import NamedTuple

import torch

from sglang.srt.kernels.gather_kv import gather_rows
from sglang.srt.layers.attention.base import AttentionBatch, AttentionRow

GROUP_SLACK = 1.25
"""Rows share a call while the longest has at most this many times the pages of the shortest, plus one."""
GROUP_TOKENS = 65536
"""Tokens gathered by one call at most, so that the scratch memory of a wide batch stays bounded."""
BAND_QUERIES = 512
"""Queries under a sliding window that share a mask, which then has 512 x (512 + window) entries at most."""


class DecodeGroup(NamedTuple):
    """Rows of one query each that share a call."""

    tokens: torch.Tensor
    """int64 `[rows]`: where their queries stand in the step."""
    blocks: torch.Tensor
    """For gather_kv; short rows repeat their last page."""
    longest: int
    """Keys of the longest row."""
    bias: torch.Tensor | None
    """float32 `[rows, 1, 1, longest]`, 0 or -inf; None where every row sees all of its keys and all are as long."""
    stale: torch.Tensor | None
    """Rows of `head_dim` elements of the gathered memory that belong to no key; None where there is none to read."""

    def mask(self, dtype: torch.dtype, group: int) -> torch.Tensor | None:
        """The bias as attention takes it, `[rows, 1, group, longest]`."""
        if self.bias is None:
            return None
        return self.bias.to(dtype).expand(-1, 1, group, -1)


class Band(NamedTuple):
    """Queries of a chunk under a sliding window, and the keys that some of them see."""

    queries: slice
    keys: slice
    """Of the gathered prefix followed by the chunk's own."""
    mask: torch.Tensor
    """float32 `[queries, keys]`, 0 or -inf."""


class ChunkPlan(NamedTuple):
    """One row of several queries."""

    tokens: slice
    start: int
    """Cached tokens that are gathered: all before the chunk, or those that its window reaches."""
    blocks: torch.Tensor
    """For gather_kv: the pages of those tokens; empty where there are none."""
    bands: tuple[Band, ...] = ()
    """Under a sliding window that hides something."""


class _Single(NamedTuple):
    """A row of one query."""

    keys: int
    row: int
    token: int
    skipped: int
    """Pages at its beginning that its window does not reach."""


class StepPlanner:
    """Plans for one geometry."""

    def __init__(self, planes: int, page_size: int) -> None:
        """`planes`: blocks a page, 2 a KV head or 1 of a latent."""
        self._planes = planes
        self._page_size = page_size

    def plan(self, batch: AttentionBatch, window: int = 0) -> tuple[list[DecodeGroup], list[ChunkPlan]]:
        """Groups for the rows of one token, one plan for each longer row. `window`: tokens a query sees; 0: all."""
        singles: list[_Single] = []
        chunks: list[ChunkPlan] = []
        first = 0
        for index, row in enumerate(batch.rows):
            if row.length == 1:
                keys = row.start + 1
                singles.append(_Single(keys, index, first, self._skipped(keys, window)))
            else:
                chunks.append(self._chunk(row, batch.block_table[index], first, window))
            first += row.length
        return [self._group(members, batch.block_table, window) for members in self._split(singles)], chunks

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._page_size)

    def _skipped(self, keys: int, window: int) -> int:
        """Whole pages before the last `window` of some keys."""
        return max(0, keys - window) // self._page_size if window else 0

    def _chunk(self, row: AttentionRow, pages: torch.Tensor, first: int, window: int) -> ChunkPlan:
        tokens = slice(first, first + row.length)
        if not window or window >= row.start + row.length:
            blocks = gather_rows(pages[: self._pages(row.start)].unsqueeze(0), self._planes)
            return ChunkPlan(tokens, row.start, blocks)
        skipped = self._skipped(row.start + 1, window)
        blocks = gather_rows(pages[skipped : self._pages(row.start)].unsqueeze(0), self._planes)
        reached = row.start - skipped * self._page_size
        return ChunkPlan(tokens, reached, blocks, _bands(reached, row.length, window))

    def _shown(self, single: _Single) -> int:
        return self._pages(single.keys) - single.skipped

    def _split(self, singles: list[_Single]) -> list[list[_Single]]:
        """Rows of similar length together; in the step's order where one group takes them all."""
        groups: list[list[_Single]] = []
        for single in sorted(singles, key=self._shown, reverse=True):
            longest = self._shown(groups[-1][0]) if groups else 0
            fits = groups and (len(groups[-1]) + 1) * longest * self._page_size <= GROUP_TOKENS
            if fits and longest <= GROUP_SLACK * self._shown(single) + 1:
                groups[-1].append(single)
            else:
                groups.append([single])
        return [sorted(group, key=lambda single: single.token) for group in groups]

    def _group(self, members: list[_Single], block_table: torch.Tensor, window: int) -> DecodeGroup:
        skipped = torch.tensor([single.skipped for single in members]).unsqueeze(1)
        keys = torch.tensor([single.keys for single in members]).unsqueeze(1)
        lengths = keys - skipped * self._page_size
        longest = int(lengths.max())
        width = self._pages(longest)
        last = (lengths - 1) // self._page_size
        rows = torch.tensor([single.row for single in members]).unsqueeze(1)
        pages = block_table[rows, torch.minimum(torch.arange(width).unsqueeze(0), last) + skipped]
        tokens = torch.tensor([single.token for single in members])
        blocks = gather_rows(pages, self._planes)
        hidden = (lengths - window).clamp(min=0) if window else torch.zeros_like(lengths)
        ragged = not bool((lengths == longest).all())
        if not ragged and not bool(hidden.any()):
            return DecodeGroup(tokens, blocks, longest, None, None)
        places = torch.arange(width * self._page_size).unsqueeze(0)
        beyond = places >= lengths
        unseen = (beyond | (places < hidden))[:, :longest]
        bias = torch.zeros(len(members), longest).masked_fill_(unseen, float("-inf")).view(-1, 1, 1, longest)
        return DecodeGroup(tokens, blocks, longest, bias, self._stale(beyond) if ragged else None)

    def _stale(self, beyond: torch.Tensor) -> torch.Tensor:
        """The gathered (row, plane, token) whose token is beyond its row; `beyond`: bool `[rows, tokens]`."""
        rows, tokens = beyond.shape
        return beyond.unsqueeze(1).expand(rows, self._planes, tokens).flatten().nonzero().flatten()


def _bands(reached: int, length: int, window: int) -> tuple[Band, ...]:
    """Cut a chunk of `length` queries after `reached` gathered tokens into bands; equal masks are made once."""
    masks: dict[tuple[int, int, int], torch.Tensor] = {}
    bands: list[Band] = []
    for first in range(0, length, BAND_QUERIES):
        stop = min(first + BAND_QUERIES, length)
        low, high = max(0, reached + first - window + 1), reached + stop
        shape = (stop - first, high - low, reached + first - low)
        if shape not in masks:
            masks[shape] = _band_mask(*shape, window)
        bands.append(Band(slice(first, stop), slice(low, high), masks[shape]))
    return tuple(bands)


def _band_mask(queries: int, keys: int, first: int, window: int) -> torch.Tensor:
    """Query i stands at key first + i, and sees the last `window` keys up to there."""
    distance = (first + torch.arange(queries)).unsqueeze(1) - torch.arange(keys).unsqueeze(0)
    return torch.zeros(queries, keys).masked_fill_((distance < 0) | (distance >= window), float("-inf"))
