"""A step's rows as the tensors of one forward pass."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from sglang.srt.config.pooling import Pooling
from sglang.srt.core.step import StepRow
from sglang.srt.layers.attention.base import AttentionBatch, AttentionRow
from sglang.srt.model_executor.row_table import RowTable
from sglang.srt.models.base import ModelInput


class ScoredRow(NamedTuple):
    """Prompt tokens of a row, scored by consecutive logits."""

    slot: int
    first: int
    """The first of the wanted logits that are its own."""
    tokens: tuple[int, ...]


class ForwardBatch(NamedTuple):
    """Everything that a forward pass and the sampler after it need."""

    inputs: ModelInput
    attention: AttentionBatch
    slots: torch.Tensor
    """int64 `[sampling rows]`, in the plan's order."""
    sampled_positions: torch.Tensor
    """int64 `[sampling rows]`: the position that each sampled token will have."""
    samples: torch.Tensor | None
    """int64 `[sampling rows]`: which of the wanted logits are sampled from; None where all are."""
    scored: tuple[ScoredRow, ...]
    """Rows whose prompt tokens are scored."""


def build_batch(
    rows: Sequence[StepRow], table: RowTable, vocab_size: int, *, pooling: Pooling = "none"
) -> ForwardBatch:
    """The batch of some rows, which `table` has applied. Token ids outside the vocabulary raise ValueError.

    With a `pooling` the model returns hidden states: of the sampling rows' last tokens, or of all tokens for the mean.
    """
    if pooling == "none" and all(row.length == 1 and row.sample and not row.scores for row in rows):
        return decode_batch(rows, table, vocab_size)
    return any_batch(rows, table, vocab_size, pooling)


def any_batch(rows: Sequence[StepRow], table: RowTable, vocab_size: int, pooling: Pooling = "none") -> ForwardBatch:
    """As build_batch, for rows of any kind."""
    slots = torch.tensor([row.slot for row in rows], dtype=torch.int64)
    starts = torch.tensor([row.start for row in rows], dtype=torch.int64)
    lengths = torch.tensor([row.length for row in rows], dtype=torch.int64)
    ends = lengths.cumsum(0)
    total = int(ends[-1])
    positions = torch.arange(total) + torch.repeat_interleave(starts - (ends - lengths), lengths)
    sampling = [index for index, row in enumerate(rows) if row.sample]
    wanted = ends[sampling] - 1 if sampling else None
    if pooling == "mean":
        wanted = torch.arange(total)
    samples: torch.Tensor | None = None
    scored: tuple[ScoredRow, ...] = ()
    if any(row.scores for row in rows):
        wanted, samples, scored = _with_scores(rows, ends.tolist())
    attention = tuple(AttentionRow(row.start, row.length) for row in rows)
    return ForwardBatch(
        inputs=ModelInput(_tokens(rows, table, vocab_size), positions, wanted, pooling != "none"),
        attention=AttentionBatch(attention, table.block_table[slots], positions),
        slots=slots[sampling],
        sampled_positions=(starts + lengths)[sampling],
        samples=samples,
        scored=scored,
    )


def decode_batch(rows: Sequence[StepRow], table: RowTable, vocab_size: int) -> ForwardBatch:
    """As any_batch, for rows of one token that all sample, as nearly every step that decodes: 5 operations for 20."""
    slots, positions = torch.tensor([[row.slot for row in rows], [row.start for row in rows]], dtype=torch.int64)
    known = any(row.tokens for row in rows)
    return ForwardBatch(
        inputs=ModelInput(
            _tokens(rows, table, vocab_size) if known else table.last_token[slots], positions, torch.arange(len(rows))
        ),
        attention=AttentionBatch(
            tuple(AttentionRow(row.start, 1) for row in rows), table.block_table[slots], positions
        ),
        slots=slots,
        sampled_positions=positions + 1,
        samples=None,
        scored=(),
    )


def _with_scores(
    rows: Sequence[StepRow], ends: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor, tuple[ScoredRow, ...]]:
    """(wanted tokens, which of them are sampled from, scored rows). A row's sampled position comes after its scored."""
    wanted: list[int] = []
    samples: list[int] = []
    scored: list[ScoredRow] = []
    for row, end in zip(rows, ends, strict=True):
        if row.scores:
            first = end - row.length + row.score_at
            scored.append(ScoredRow(row.slot, len(wanted), row.scores))
            wanted.extend(range(first, first + len(row.scores)))
        if row.sample:
            samples.append(len(wanted))
            wanted.append(end - 1)
    return torch.tensor(wanted, dtype=torch.int64), torch.tensor(samples, dtype=torch.int64), tuple(scored)


def _tokens(rows: Sequence[StepRow], table: RowTable, vocab_size: int) -> torch.Tensor:
    """The tokens of all rows; a row without tokens takes what its slot sampled last, which the host need not know."""
    flat: list[int] = []
    places: list[int] = []
    slots: list[int] = []
    for row in rows:
        if not row.tokens:
            places.append(len(flat))
            slots.append(row.slot)
        flat.extend(row.tokens or (0,))
    tokens = torch.tensor(flat, dtype=torch.int64)
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab_size:
        raise ValueError(f"token ids {low} .. {high} leave the vocabulary of {vocab_size}")
    if places:
        tokens[torch.tensor(places)] = table.last_token[torch.tensor(slots)]
    return tokens
