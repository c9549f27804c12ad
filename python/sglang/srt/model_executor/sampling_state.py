"""The sampling parameters of all rows as columns, so that a step's sampling is a few vector operations."""

from collections.abc import Callable

import torch

from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.step import RowOpen
from sglang.srt.model_executor.grammar_rows import GrammarRows, MatcherSource, NoMatchers


class SparseRows:
    """A few (token, value) pairs for some slots: biases, forbidden tokens."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def set(self, slot: int, tokens: list[int], values: list[float]) -> None:
        """Replace a slot's pairs; none removes it."""
        self._pairs.pop(slot, None)
        if tokens:
            self._pairs[slot] = (torch.tensor(tokens, dtype=torch.int64), torch.tensor(values, dtype=torch.float32))

    def select(self, slots: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        """(row, token, value) of every pair of `slots`, rows counted in their order; None where there are none."""
        found = [(row, *self._pairs[slot]) for row, slot in enumerate(slots) if slot in self._pairs]
        if not found:
            return None
        rows = torch.cat([torch.full_like(tokens, row) for row, tokens, _ in found])
        return rows, torch.cat([tokens for _, tokens, _ in found]), torch.cat([values for _, _, values in found])


class SamplingState:
    """Columns `[max_rows]` of sampling parameters, and counts of tokens where penalties need them."""

    def __init__(self, max_rows: int, vocab_size: int, matchers: MatcherSource | None = None) -> None:
        def column(dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(max_rows, dtype=dtype)

        self.temperature = column(torch.float32)
        """0 for greedy rows."""
        self.top_k = column(torch.int64)
        """The vocabulary's size where nothing is cut."""
        self.top_p = column(torch.float32)
        self.min_p = column(torch.float32)
        self.frequency = column(torch.float32)
        self.presence = column(torch.float32)
        self.repetition = column(torch.float32)
        self.seed = column(torch.int64)
        self.generated = column(torch.int64)
        self.min_new = column(torch.int64)
        self.bias = SparseRows()
        self.stops = SparseRows()
        self.grammars = GrammarRows(matchers if matchers is not None else NoMatchers(), vocab_size)
        self.params: dict[int, SamplingParams] = {}
        self.vocab_size = vocab_size
        self._max_rows = max_rows
        self._counts: torch.Tensor | None = None
        self._prompt: torch.Tensor | None = None

    def open(self, row: RowOpen) -> None:
        """A request takes a slot."""
        p, slot = row.sampling, row.slot
        columns: list[tuple[torch.Tensor, float | int]] = [
            (self.temperature, 0.0 if p.greedy else p.temperature),
            (self.top_k, min(p.top_k, self.vocab_size) if p.top_k > 0 else self.vocab_size),
            (self.top_p, p.top_p),
            (self.min_p, p.min_p),
            (self.frequency, p.frequency_penalty),
            (self.presence, p.presence_penalty),
            (self.repetition, p.repetition_penalty),
            (self.seed, row.seed),
            (self.generated, row.generated),
            (self.min_new, p.min_new_tokens),
        ]
        for tensor, value in columns:
            tensor[slot] = value
        self.params[slot] = p
        bias = [(token, value) for token, value in p.logit_bias if 0 <= token < self.vocab_size]
        self.bias.set(slot, [token for token, _ in bias], [value for _, value in bias])
        stops = [t for t in p.stop_token_ids if 0 <= t < self.vocab_size] if row.generated < p.min_new_tokens else []
        self.stops.set(slot, stops, [float("-inf")] * len(stops))
        self.grammars.open(row)
        if p.penalised:
            self._count_history(row)

    def close(self, slot: int) -> None:
        """The request is gone."""
        self.params.pop(slot, None)
        self.bias.set(slot, [], [])
        self.stops.set(slot, [], [])
        self.grammars.close(slot)

    def any(self, slots: list[int], wants: Callable[[SamplingParams], bool]) -> bool:
        """Whether some row of a step wants something."""
        return any(wants(self.params[slot]) for slot in slots)

    def counts(self) -> torch.Tensor:
        """int32 `[max_rows, vocab]`: how often each token was generated. Exists from the first penalised row on."""
        if self._counts is None:
            self._counts = torch.zeros(self._max_rows, self.vocab_size, dtype=torch.int32)
        return self._counts

    def prompt(self) -> torch.Tensor:
        """bool `[max_rows, vocab]`: whether a token is in the prompt. Exists from the first penalised row on."""
        if self._prompt is None:
            self._prompt = torch.zeros(self._max_rows, self.vocab_size, dtype=torch.bool)
        return self._prompt

    def record(self, slots: torch.Tensor, tokens: torch.Tensor, names: list[int]) -> None:
        """Tokens were sampled: `slots`, `tokens` int64 `[n]`; `names` is `slots` as a list."""
        self.generated[slots] += 1
        if self.any(names, lambda p: p.penalised):
            self.counts()[slots, tokens] += 1

    def _count_history(self, row: RowOpen) -> None:
        counts, prompt = self.counts()[row.slot], self.prompt()[row.slot]
        counts.zero_()
        prompt.zero_()
        if row.prompt:
            prompt[torch.tensor(row.prompt)] = True
        if row.outputs:
            outputs = torch.tensor(row.outputs)
            counts.index_add_(0, outputs, torch.ones_like(outputs, dtype=torch.int32))
