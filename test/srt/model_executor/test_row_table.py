"""Plans that do not fit the rows."""

import pytest

from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.step import RowOpen, StepPlan, StepRow
from sglang.srt.errors import EngineError
from sglang.srt.model_executor.row_table import RowTable


def table() -> RowTable:
    """Slot 1 is open with pages 5 and 6 and has sampled; slot 2 is open and has not."""
    made = RowTable(max_rows=4, max_context=40, page_size=16, num_pages=10)
    opened = tuple(RowOpen(slot=slot, sampling=SamplingParams(), seed=0) for slot in (1, 2))
    row = StepRow(slot=1, start=0, length=20, tokens=(0,) * 20, new_pages=(5, 6), sample=True)
    made.apply(StepPlan(step_id=1, rows=(row,), opened=opened))
    return made


def row(**fields: object) -> StepRow:
    """One token more for slot 1."""
    values = {"slot": 1, "start": 20, "length": 1, "tokens": (3,)} | fields
    return StepRow(**values)  # type: ignore[arg-type]


def test_a_fitting_plan() -> None:
    made = table()
    made.apply(StepPlan(step_id=2, rows=(row(tokens=(), sample=True),)))
    made.apply(StepPlan(step_id=3, rows=(row(start=32, length=8, tokens=(0,) * 8, new_pages=(7,)),)))
    assert made.block_table[1].tolist() == [5, 6, 7]
    made.apply(StepPlan(step_id=4, rows=(), closed=(1,)))
    assert made.open_rows == {2}
    made.apply(StepPlan(step_id=5, rows=(), opened=(RowOpen(slot=1, sampling=SamplingParams(), seed=0),)))
    with pytest.raises(EngineError, match="not sampled"):
        made.apply(StepPlan(step_id=6, rows=(row(start=0, tokens=(), new_pages=(1,)),)))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(slot=3), "slot 3 is not open"),
        (row(slot=99), "slot 99 is not open"),
        (row(new_pages=(10,)), r"outside 0 \.\. 9"),
        (row(new_pages=(-1,)), r"outside 0 \.\. 9"),
        (row(new_pages=(1, 2)), "would hold 4 pages of 3"),
        (row(start=32), r"tokens 32 \.\. 32 with 2 pages of 16"),
        (row(start=40, new_pages=(1,)), r"tokens 40 \.\. 40 with 3 pages"),
        (row(start=-1), "tokens -1"),
        (row(length=0, tokens=()), "tokens 20"),
        (row(length=2), "1 tokens for a length of 2"),
        (row(length=2, tokens=()), "not sampled"),
        (row(slot=2, start=0, tokens=(), new_pages=(1,)), "not sampled"),
    ],
)
def test_a_wrong_row(bad: StepRow, message: str) -> None:
    with pytest.raises(EngineError, match=rf"step 2: .*{message}"):
        table().apply(StepPlan(step_id=2, rows=(bad,)))


def test_a_slot_twice() -> None:
    with pytest.raises(EngineError, match="appears twice"):
        table().apply(StepPlan(step_id=2, rows=(row(), row(start=21))))


def test_closing_and_opening() -> None:
    with pytest.raises(EngineError, match="closes slot 0"):
        table().apply(StepPlan(step_id=2, rows=(), closed=(0,)))
    for slot in (1, 4, -1):
        with pytest.raises(EngineError, match=f"opens slot {slot}"):
            opened = (RowOpen(slot=slot, sampling=SamplingParams(), seed=0),)
            table().apply(StepPlan(step_id=2, rows=(), opened=opened))
