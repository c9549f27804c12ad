"""Token embedding and output head, both spread over ranks along the vocabulary (shard axis 0)."""

from collections.abc import Iterator
from enum import Enum

import torch

from sglang.srt.kernels.linear import Matrix
from sglang.srt.layers.parameter import LayerContext, Piece, Source, Weight


class TableUse(Enum):
    """What a `[vocab, hidden]` table is for."""

    LOOKUP = "token ids to vectors"
    HEAD = "vectors to logits"
    BOTH = "tied"


class VocabTable:
    """A `[vocab, hidden]` table; calling it looks up token ids, `logits` multiplies by it."""

    def __init__(self, context: LayerContext, name: str, vocab: int, hidden: int, use: TableUse) -> None:
        self._name = name
        self._vocab = vocab
        self._use = use
        self._share = context.group.share(vocab, "vocabulary entries")
        self._solo = context.group.size == 1
        self._collectives = context.collectives
        self._matrix = Matrix(len(self._share), hidden, context.dtype)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids int64 `[tokens]` -> `[tokens, hidden]`, complete on every rank. Not for a table used as HEAD."""
        if self._solo:
            return self._matrix.take(tokens)
        foreign = (tokens < self._share.start) | (tokens >= self._share.stop)
        rows = self._matrix.take((tokens - self._share.start).masked_fill(foreign, 0))
        return self._collectives.all_reduce(rows.masked_fill(foreign.unsqueeze(-1), 0))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states `[rows, hidden]` -> logits `[rows, vocab]`, complete on every rank."""
        return self._collectives.all_gather_last(self._matrix(hidden))

    def weights(self) -> Iterator[Weight]:
        """The table."""
        table = self._matrix.weight
        piece = Piece(0, self._share.start, len(self._share), table)
        yield Weight(((Source(f"{self._name}.weight", (self._vocab, table.shape[1]), (piece,)),),), self._ready)

    def _ready(self) -> None:
        if self._use is not TableUse.LOOKUP:
            self._matrix.pack()
