"""Token embedding and output head, both spread over ranks along the vocabulary (shard axis 0)."""

from collections.abc import Iterator

import torch
from torch.nn import functional as F

from sglang.srt.layers.parameter import LayerContext, Piece, Source, Weight


class VocabEmbedding:
    """Token ids int64 `[tokens]` -> `[tokens, hidden]`, complete on every rank."""

    def __init__(self, context: LayerContext, name: str, vocab: int, hidden: int) -> None:
        self._name = name
        self._vocab = vocab
        self._share = context.group.share(vocab, "vocabulary entries")
        self._solo = context.group.size == 1
        self._collectives = context.collectives
        self.weight = torch.empty(len(self._share), hidden, dtype=context.dtype)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        if self._solo:
            return F.embedding(tokens, self.weight)
        foreign = (tokens < self._share.start) | (tokens >= self._share.stop)
        rows = F.embedding((tokens - self._share.start).masked_fill(foreign, 0), self.weight)
        return self._collectives.all_reduce(rows.masked_fill(foreign.unsqueeze(-1), 0))

    def weights(self) -> Iterator[Weight]:
        """The table."""
        piece = Piece(0, self._share.start, len(self._share), self.weight)
        yield Weight(((Source(f"{self._name}.weight", (self._vocab, self.weight.shape[1]), (piece,)),),))


class OutputHead:
    """Hidden states `[rows, hidden]` -> logits `[rows, vocab]`, complete on every rank.

    A tied head is built over the embedding's own table and has no weights of its own.
    """

    def __init__(self, context: LayerContext, table: VocabEmbedding, *, tied: bool) -> None:
        self._table = table
        self._tied = tied
        self._collectives = context.collectives

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._collectives.all_gather_last(F.linear(hidden, self._table.weight))

    def weights(self) -> Iterator[Weight]:
        """The matrix, unless it is the embedding's."""
        if not self._tied:
            yield from self._table.weights()
