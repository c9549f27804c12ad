"""Grammars of the rows: which tokens each may sample next. Nothing happens in a step without constrained rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import torch

from sglang.srt.constrained.base import Bits, GrammarMatcher, bits_of
from sglang.srt.core.grammar import GrammarSpec
from sglang.srt.core.step import RowOpen, SampledToken
from sglang.srt.errors import EngineError


class MatcherSource(Protocol):
    """Where matchers of compiled grammars come from."""

    def matcher(self, spec: GrammarSpec) -> GrammarMatcher:
        """A matcher at the grammar's start; raises EngineError for a grammar that is not compiled."""
        ...


class NoMatchers:
    """An engine without structured output."""

    def matcher(self, spec: GrammarSpec) -> GrammarMatcher:
        raise EngineError("a row has a grammar, but this worker has no grammar backend")


@dataclass(slots=True)
class _Row:
    matcher: GrammarMatcher
    after: tuple[int, ...]
    """The grammar begins behind these tokens."""
    opening: int = -1
    """As the first token, this one begins what comes before the grammar; any other begins the grammar. -1: none."""
    ends: tuple[int, ...] = ()
    """Not allowed before the grammar begins."""
    recent: tuple[int, ...] = ()
    begun: bool = False
    stuck: bool = False
    """No token was allowed: the grammar cannot be completed from here."""

    def fill(self, bits: Bits) -> None:
        """What may come next; nothing of a row that is stuck."""
        words = bits.view(np.uint32)
        if not self.begun:
            words[:] = 0xFFFFFFFF
            for token in self.ends:
                words[token // 32] &= ~np.uint32(1 << token % 32)
        elif not self.stuck:
            self.matcher.fill(bits)
        if self.opening >= 0:
            words[self.opening // 32] |= np.uint32(1 << self.opening % 32)

    def accept(self, token: int) -> None:
        """Advance by a token that was sampled, or was before the row was opened."""
        if self.opening >= 0:
            self.begun, self.opening = token != self.opening, -1
            if not self.begun:
                return
        if not self.begun:
            self.recent = (*self.recent, token)[-len(self.after) :]
            self.begun = self.recent == self.after
        elif not (self.matcher.terminated or self.stuck):
            self.stuck = not self.matcher.accept(token)


class GrammarRows:
    """One matcher a constrained slot. The compute thread owns it."""

    def __init__(self, source: MatcherSource, vocab_size: int) -> None:
        self._source = source
        self._vocab_size = vocab_size
        self._rows: dict[int, _Row] = {}

    def open(self, row: RowOpen) -> None:
        """A request takes a slot; what it generated before is replayed."""
        spec = row.sampling.grammar
        if spec is None:
            return
        after = row.sampling.grammar_after
        opening = row.sampling.grammar_opening
        ends = tuple(token for token in row.sampling.stop_token_ids if 0 <= token < self._vocab_size)
        opened = _Row(self._source.matcher(spec), after, opening, ends, begun=not after or opening >= 0)
        for token in row.outputs:
            opened.accept(token)
        self._rows[row.slot] = opened

    def close(self, slot: int) -> None:
        """The request is gone."""
        self._rows.pop(slot, None)

    def constrained(self, slots: Sequence[int]) -> list[int]:
        """Positions in `slots` whose next token a grammar restricts."""
        if not self._rows:
            return []
        return [position for position, slot in enumerate(slots) if slot in self._rows]

    def allowed(self, slots: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """bool `[len(positions), vocab]`: what the grammars of `slots[p]` allow. All false for a stuck row."""
        bits = np.zeros((len(positions), len(bits_of(self._vocab_size))), dtype=np.int32)
        for line, position in zip(bits, positions, strict=True):
            self._rows[slots[position]].fill(line)
        return torch.from_numpy(np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")).bool()[
            :, : self._vocab_size
        ]

    def accept(self, slots: Sequence[int], tokens: torch.Tensor) -> None:
        """`tokens` int64 `[len(slots)]` were sampled."""
        if not self._rows:
            return
        for slot, token in zip(slots, tokens.tolist(), strict=True):
            row = self._rows.get(slot)
            if row is not None:
                row.accept(token)

    def marked(self, sampled: tuple[SampledToken, ...]) -> tuple[SampledToken, ...]:
        """`sampled` with those marked that their grammars do not allow."""
        if not any(row.stuck for row in self._rows.values()):
            return sampled
        return tuple(
            msgspec.structs.replace(token, stuck=True) if self._stuck(token.slot) else token for token in sampled
        )

    def _stuck(self, slot: int) -> bool:
        row = self._rows.get(slot)
        return row is not None and row.stuck
