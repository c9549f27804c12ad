"""The mean of a prompt's hidden states, over however many steps its chunks take."""

from collections.abc import Sequence

import torch

from sglang.srt.core.step import StepRow


class MeanPooling:
    """Running sums, one a row slot."""

    def __init__(self) -> None:
        self._sums: dict[int, torch.Tensor] = {}

    def take(self, rows: Sequence[StepRow], hidden: torch.Tensor) -> torch.Tensor:
        """`hidden` `[tokens, hidden]` of a step; float32 `[sampling rows, hidden]`: means of prompts that end here.

        A prompt begins with the row that starts at 0, so it must not begin with cached KV.
        """
        means = []
        end = 0
        for row in rows:
            first, end = end, end + row.length
            total = hidden[first:end].sum(dim=0, dtype=torch.float32)
            if row.start:
                total += self._sums.pop(row.slot)
            if row.sample:
                means.append(total / (row.start + row.length))
            else:
                self._sums[row.slot] = total
        return torch.stack(means) if means else hidden.new_empty(0, hidden.shape[1], dtype=torch.float32)
