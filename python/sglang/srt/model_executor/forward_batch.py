"""A step's rows as the tensors of one forward pass."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from sglang.srt.core.step import StepRow
from sglang.srt.layers.attention.base import AttentionBatch, AttentionRow
from sglang.srt.model_executor.row_table import RowTable
from sglang.srt.models.base import ModelInput


class ForwardBatch(NamedTuple):
    """Everything that a forward pass and the sampler after it need."""

    inputs: ModelInput
    attention: AttentionBatch
    slots: torch.Tensor
    """int64 `[sampling rows]`, in the plan's order."""
    sampled_positions: torch.Tensor
    """int64 `[sampling rows]`: the position that each sampled token will have."""


def build_batch(rows: Sequence[StepRow], table: RowTable, vocab_size: int) -> ForwardBatch:
    """The batch of some rows, which `table` has applied. Token ids outside the vocabulary raise ValueError."""
    slots = torch.tensor([row.slot for row in rows], dtype=torch.int64)
    starts = torch.tensor([row.start for row in rows], dtype=torch.int64)
    lengths = torch.tensor([row.length for row in rows], dtype=torch.int64)
    ends = lengths.cumsum(0)
    total = int(ends[-1])
    positions = torch.arange(total) + torch.repeat_interleave(starts - (ends - lengths), lengths)
    sampling = [index for index, row in enumerate(rows) if row.sample]
    wanted = ends[sampling] - 1 if sampling else None
    attention = tuple(AttentionRow(row.start, row.length) for row in rows)
    return ForwardBatch(
        inputs=ModelInput(_tokens(rows, table, vocab_size), positions, wanted),
        attention=AttentionBatch(attention, table.block_table[slots], positions),
        slots=slots[sampling],
        sampled_positions=(starts + lengths)[sampling],
    )


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
