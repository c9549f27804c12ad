"""A step's rows as tensors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang.srt.core.step import StepRow
from sglang.srt.model_executor.forward_batch import any_batch, build_batch, decode_batch
from sglang.srt.model_executor.row_table import RowTable

SLOTS, VOCABULARY = 9, 50


def table_of(seed: int) -> RowTable:
    """Rows with pages and last tokens."""
    table = RowTable(max_rows=SLOTS, max_context=64, page_size=16, num_pages=99)
    random = torch.Generator().manual_seed(seed)
    table.block_table.random_(0, 99, generator=random)
    table.last_token.random_(0, VOCABULARY, generator=random)
    return table


@given(
    slots=st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=SLOTS, unique=True),
    starts=st.lists(st.integers(0, 63), min_size=SLOTS, max_size=SLOTS),
    known=st.lists(st.none() | st.integers(0, VOCABULARY - 1), min_size=SLOTS, max_size=SLOTS),
    seed=st.integers(0, 99),
)
def test_a_decode_batch_is_that_of_any_rows(
    slots: list[int], starts: list[int], known: list[int | None], seed: int
) -> None:
    rows = [
        StepRow(slot=slot, start=start, length=1, tokens=() if token is None else (token,), new_pages=(), sample=True)
        for slot, start, token in zip(slots, starts, known, strict=False)
    ]
    table = table_of(seed)
    found, expected = decode_batch(rows, table, VOCABULARY), any_batch(rows, table, VOCABULARY)
    assert found.attention.rows == expected.attention.rows
    assert (found.samples, found.scored, found.inputs.hidden) == (None, (), False)
    pairs = [
        (found.inputs.tokens, expected.inputs.tokens),
        (found.inputs.positions, expected.inputs.positions),
        (found.inputs.wanted, expected.inputs.wanted),
        (found.attention.block_table, expected.attention.block_table),
        (found.attention.positions, expected.attention.positions),
        (found.slots, expected.slots),
        (found.sampled_positions, expected.sampled_positions),
    ]
    for mine, theirs in pairs:
        assert mine is not None
        assert theirs is not None
        assert mine.dtype is theirs.dtype
        assert torch.equal(mine, theirs)


def test_a_token_outside_the_vocabulary_is_refused() -> None:
    for token in (-1, VOCABULARY):
        row = StepRow(slot=1, start=3, length=1, tokens=(token,), new_pages=(), sample=True)
        with pytest.raises(ValueError, match="leave the vocabulary of 50"):
            build_batch([row], table_of(0), VOCABULARY)
