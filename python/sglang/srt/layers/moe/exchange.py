"""Tokens to the ranks that hold their experts, and what those computed back: expert parallelism beside data-parallel
attention.

A token goes once to each rank that holds some of its experts, with its choice (as in DeepEP's dispatch,
https://github.com/deepseek-ai/DeepEP); that rank answers with the weighted sum over its experts, and the token's own
rank adds the sums up in rank order. Ranks may have any number of tokens, none included, but all call together.
"""

from typing import NamedTuple

import torch

from sglang.srt.layers.moe.experts import Experts
from sglang.srt.layers.parameter import ExpertRanks


class ExpertExchange:
    """As Experts, complete: the sum over all chosen experts, wherever they are."""

    def __init__(self, ranks: ExpertRanks, experts: Experts) -> None:
        self._collectives = ranks.collectives
        self._size = ranks.group.size
        self._experts = experts

    def __call__(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """`x` and the answer (float32) `[tokens, hidden]`; `experts` int64 and `weights` float32 `[tokens, top_k]`."""
        owners = experts // len(self._experts.share.experts)
        wanted = torch.zeros(x.shape[0], self._size, dtype=torch.bool).scatter_(1, owners, True)
        tokens = wanted.t().nonzero()[:, 1]
        counts: list[int] = self._collectives.all_gather_last(wanted.sum(0).unsqueeze(0)).flatten().tolist()
        form = _Row(x.dtype, x.shape[1], experts.shape[1])
        arrived = self._collectives.all_to_all(form.pack(x[tokens], experts[tokens], weights[tokens]), counts)
        answers = self._experts(*form.unpack(arrived)).to(x.dtype)
        back = self._collectives.all_to_all(answers, _transposed(counts, self._size))
        return torch.zeros(x.shape, dtype=torch.float32).index_add_(0, tokens, back.to(torch.float32))


class _Row(NamedTuple):
    """What travels of a token: its hidden state, its experts (int32), their weights (float32), as bytes."""

    dtype: torch.dtype
    hidden: int
    top_k: int

    def pack(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """uint8 `[tokens, bytes]`."""
        parts = (x, experts.to(torch.int32), weights)
        return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=1)

    def unpack(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The three again, experts as int64."""
        width, choice = self.hidden * self.dtype.itemsize, 4 * self.top_k
        x, experts, weights = rows[:, :width], rows[:, width : width + choice], rows[:, width + choice :]
        found = experts.contiguous().view(torch.int32).to(torch.int64)
        return x.contiguous().view(self.dtype), found, weights.contiguous().view(torch.float32)


def _transposed(counts: list[int], size: int) -> list[int]:
    """Counts of the way back."""
    return [counts[there * size + here] for here in range(size) for there in range(size)]
