"""Log probabilities of prompt tokens, from the logits of the positions before them."""

import torch

from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.step import TokenScore
from sglang.srt.model_executor.forward_batch import ScoredRow

BLOCK = 32
"""Positions at a time: their float32 copy takes 32 x vocabulary x 4 bytes."""


def score(logits: torch.Tensor, row: ScoredRow, params: SamplingParams) -> tuple[TokenScore, ...]:
    """Scores of a row's tokens; `logits` `[wanted, vocab]` of the whole step."""
    found: list[TokenScore] = []
    for start in range(0, len(row.tokens), BLOCK):
        tokens = row.tokens[start : start + BLOCK]
        first = row.first + start
        every = logits[first : first + len(tokens)].log_softmax(dim=-1, dtype=torch.float32)
        found += _block(every, tokens, params)
    return tuple(found)


def _block(every: torch.Tensor, tokens: tuple[int, ...], params: SamplingParams) -> list[TokenScore]:
    own: list[float] = every.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1).tolist()
    if not (params.top_logprobs or params.logprob_ids):
        return [TokenScore(logprob=value) for value in own]
    best = every.topk(min(params.top_logprobs, every.shape[1]), dim=-1)
    ids = every[:, list(params.logprob_ids)].tolist()
    values, names = best.values.tolist(), best.indices.tolist()
    return [
        TokenScore(logprob=own[i], top=tuple(zip(names[i], values[i], strict=True)), ids=tuple(ids[i]))
        for i in range(len(tokens))
    ]
