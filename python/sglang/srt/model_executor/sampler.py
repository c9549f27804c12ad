"""From logits to tokens, for all rows of a step at once.

Order: bias, penalties, forbidden stop tokens, grammar, temperature, top-k, top-p, min-p, draw. Each row's token depends
on its logits, its parameters, what its grammar allows and (seed, position) alone.
"""

from typing import NamedTuple

import torch

from sglang.srt.kernels.argmax import argmax
from sglang.srt.kernels.draw import DrawFilters, draw
from sglang.srt.model_executor.random import uniform
from sglang.srt.model_executor.sampling_state import SamplingState


class Sampled(NamedTuple):
    """What was drawn. Log probabilities are float32, of the model's own distribution; None where no row wants any."""

    tokens: torch.Tensor
    """int64 `[rows]`."""
    logprobs: torch.Tensor | None
    """`[rows]`."""
    top_logprobs: torch.Tensor | None
    """`[rows, most]`, descending."""
    top_tokens: torch.Tensor | None
    """int64 `[rows, most]`."""
    ids: list[tuple[float, ...]] | None = None
    """Of each row's logprob_ids."""


class Sampler:
    """Draws for the rows of a SamplingState."""

    def __init__(self, state: SamplingState) -> None:
        self._state = state

    def sample(self, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> Sampled:
        """`logits` `[rows, vocab]`; `slots` and `positions` int64 `[rows]`. Counts the tokens as generated."""
        names: list[int] = slots.tolist()
        adjusted = self._adjust(logits, slots, names)
        if self._state.any(names, lambda p: not p.greedy):
            tokens = self._draw(adjusted, slots, positions)
        else:
            tokens = argmax(adjusted)
        self._state.record(slots, tokens, names)
        self._state.grammars.accept(names, tokens)
        return self._with_logprobs(tokens, logits, names)

    def _adjust(self, logits: torch.Tensor, slots: torch.Tensor, names: list[int]) -> torch.Tensor:
        """Bias, penalties and stop tokens that are not allowed yet; the model's logits themselves stay as they are."""
        state = self._state
        bias = state.bias.select(names)
        stops = self._early_stops(slots, names)
        penalised = state.any(names, lambda p: p.penalised)
        constrained = state.grammars.constrained(names)
        if bias is None and stops is None and not penalised and not constrained:
            return logits
        adjusted = logits.to(torch.float32, copy=True)
        if penalised:
            self._penalise(adjusted, slots)
        for pairs in (bias, stops):
            if pairs is not None:
                rows, tokens, values = pairs
                adjusted.index_put_((rows, tokens), values, accumulate=True)
        if constrained:
            self._constrain(adjusted, logits, names, constrained)
        return adjusted

    def _constrain(
        self, adjusted: torch.Tensor, logits: torch.Tensor, names: list[int], constrained: list[int]
    ) -> None:
        """Leave `constrained` rows what their grammars allow; of those where that is nothing, leave all."""
        allowed = self._state.grammars.allowed(names, constrained)
        allowed |= ~allowed.any(dim=1, keepdim=True)
        rows = torch.tensor(constrained)
        masked = adjusted[rows].masked_fill(~allowed, float("-inf"))
        # A complete output ends even before min_new_tokens, for there is nothing else that it could do.
        over = masked.isneginf().all(dim=1)
        if bool(over.any()):
            masked[over] = logits[rows[over]].float().masked_fill(~allowed[over], float("-inf"))
        adjusted[rows] = masked

    def _early_stops(
        self, slots: torch.Tensor, names: list[int]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        pairs = self._state.stops.select(names)
        if pairs is None:
            return None
        rows, tokens, values = pairs
        early = (self._state.generated[slots] < self._state.min_new[slots])[rows]
        return (rows[early], tokens[early], values[early]) if bool(early.any()) else None

    def _penalise(self, logits: torch.Tensor, slots: torch.Tensor) -> None:
        """Frequency and presence as OpenAI has them; repetition, prompt included, as CTRL (Keskar et al. 2019)."""
        state = self._state
        counts = state.counts()[slots]
        seen = (counts > 0) | state.prompt()[slots]
        repetition = state.repetition[slots].unsqueeze(1)
        factor = torch.where(logits > 0, 1.0 / repetition, repetition)
        logits.mul_(torch.where(seen, factor, 1.0))
        logits.sub_(counts * state.frequency[slots].unsqueeze(1))
        logits.sub_((counts > 0) * state.presence[slots].unsqueeze(1))

    def _draw(self, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Inverse transform sampling over the kept tokens in vocabulary order; greedy rows take the most likely."""
        state = self._state
        filters = DrawFilters(*(c[slots] for c in (state.temperature, state.top_k, state.top_p, state.min_p)))
        return draw(logits, filters, uniform(state.seed[slots], positions))

    def _with_logprobs(self, tokens: torch.Tensor, logits: torch.Tensor, names: list[int]) -> Sampled:
        if not self._state.any(names, lambda p: p.logprobs or p.top_logprobs > 0):
            return Sampled(tokens, None, None, None)
        every = logits.log_softmax(dim=-1, dtype=torch.float32)
        chosen = every.gather(1, tokens.unsqueeze(1)).squeeze(1)
        ids = self._of_ids(every, names)
        most = max(self._state.params[slot].top_logprobs for slot in names)
        if most == 0:
            return Sampled(tokens, chosen, None, None, ids)
        top, top_tokens = every.topk(min(most, every.shape[1]), dim=-1)
        return Sampled(tokens, chosen, top, top_tokens, ids)

    def _of_ids(self, every: torch.Tensor, names: list[int]) -> list[tuple[float, ...]] | None:
        """One gather for all rows; shorter lists are filled up with token 0 and cut again."""
        lists = [self._state.params[slot].logprob_ids for slot in names]
        longest = max(map(len, lists))
        if longest == 0:
            return None
        wanted = torch.tensor([[*row, *[0] * (longest - len(row))] for row in lists])
        values = every.gather(1, wanted).tolist()
        return [tuple(value[: len(row)]) for value, row in zip(values, lists, strict=True)]
