"""The rows that a worker keeps between steps, and the check that a plan fits them."""

import torch

from sglang.srt.core.step import StepPlan, StepRow
from sglang.srt.errors import EngineError


class RowTable:
    """Block tables and last sampled tokens, one row a slot.

    block_table: int32 `[max_rows, max_pages]`; last_token: int64 `[max_rows]`.
    """

    def __init__(self, *, max_rows: int, max_context: int, page_size: int, num_pages: int) -> None:
        max_pages = -(-max_context // page_size)
        self.block_table = torch.zeros(max_rows, max_pages, dtype=torch.int32)
        self.last_token = torch.zeros(max_rows, dtype=torch.int64)
        self._page_size = page_size
        self._num_pages = num_pages
        self._max_context = max_context
        self._pages: dict[int, int] = {}
        self._sampled: set[int] = set()

    @property
    def open_rows(self) -> frozenset[int]:
        """Slots that hold a request."""
        return frozenset(self._pages)

    def apply(self, plan: StepPlan) -> None:
        """Close, open and extend rows as the plan says. Raises EngineError, naming step and slot, for a wrong plan."""
        for slot in plan.closed:
            if self._pages.pop(slot, None) is None:
                raise EngineError(f"step {plan.step_id} closes slot {slot}, which is not open")
            self._sampled.discard(slot)
        for opened in plan.opened:
            if opened.slot in self._pages or not 0 <= opened.slot < self.last_token.shape[0]:
                raise EngineError(f"step {plan.step_id} opens slot {opened.slot}, which is open or does not exist")
            self._pages[opened.slot] = 0
        seen: set[int] = set()
        for row in plan.rows:
            fault = f"slot {row.slot} appears twice" if row.slot in seen else self._extend(row)
            if fault:
                raise EngineError(f"step {plan.step_id}: {fault}")
            seen.add(row.slot)

    def _extend(self, row: StepRow) -> str:
        """Append the row's new pages; what is wrong with the row, or an empty string."""
        held = self._pages.get(row.slot)
        if held is None:
            return f"slot {row.slot} is not open"
        total = held + len(row.new_pages)
        if total > self.block_table.shape[1]:
            return f"slot {row.slot} would hold {total} pages of {self.block_table.shape[1]}"
        if any(not 0 <= page < self._num_pages for page in row.new_pages):
            return f"slot {row.slot} gets a page outside 0 .. {self._num_pages - 1}: {row.new_pages}"
        end = row.start + row.length
        if row.start < 0 or row.length < 1 or end > min(total * self._page_size, self._max_context):
            return f"slot {row.slot}: tokens {row.start} .. {end - 1} with {total} pages of {self._page_size}"
        if row.tokens and len(row.tokens) != row.length:
            return f"slot {row.slot}: {len(row.tokens)} tokens for a length of {row.length}"
        if not row.tokens and (row.length != 1 or row.slot not in self._sampled):
            return f"slot {row.slot} continues with a token that it has not sampled"
        if row.scores and not 0 <= row.score_at <= row.length - len(row.scores):
            return f"slot {row.slot}: scores {row.score_at} .. of {len(row.scores)} tokens in {row.length}"
        if row.new_pages:
            self.block_table[row.slot, held:total] = torch.tensor(row.new_pages, dtype=torch.int32)
            self._pages[row.slot] = total
        if row.sample:
            self._sampled.add(row.slot)
        return ""
