"""The one message a worker obeys, and the one it answers with.

A `StepPlan` carries differences: a worker keeps a table of rows (block table, sampling state, last sampled token), and
a plan opens rows, extends them and closes them. That is small enough to broadcast to many ranks, and it lets the
scheduler plan step N+1 before the tokens of step N are known: a row without tokens continues with what its slot
sampled last.
"""

import msgspec

from sglang.srt.core.sampling import SamplingParams


class RowOpen(msgspec.Struct, frozen=True, kw_only=True):
    """A request takes a row slot. The slot's earlier state is gone."""

    slot: int
    sampling: SamplingParams
    seed: int
    """The resolved seed, 0 <= seed < 2**63."""
    prompt: tuple[int, ...] = ()
    """Prompt tokens, filled only where repetition penalty needs them."""
    outputs: tuple[int, ...] = ()
    """Tokens this request generated before (it was retracted and resumes), filled only where penalties or a grammar
    need them.
    """
    generated: int = 0
    """How many tokens the request had generated before this row was opened; min_new_tokens counts from there."""


class StepRow(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One request's part of a step: compute `length` tokens at positions start .. start+length-1.

    The KV of positions 0 .. start-1 is already in the row's pages. The row's pages, `new_pages` included, cover
    start+length tokens.
    """

    # No field names on the wire and no garbage collector's list: 256 rows encode in 11 us and decode in 27, in place of
    # 19 and 39 (one core of an EPYC Genoa).

    slot: int
    start: int
    length: int
    tokens: tuple[int, ...]
    """The tokens to compute, `length` of them; or empty, with length 1: the token that this slot sampled last."""
    new_pages: tuple[int, ...] = ()
    """Pages appended to the row's block table before the step."""
    sample: bool = False
    """Sample a token from the logits of the last position. False for all but the last chunk, and always on prefill
    engines.
    """
    score_at: int = 0
    scores: tuple[int, ...] = ()
    """Tokens of the prompt whose log probability is wanted: scores[i] follows the position start + score_at + i."""


class StepPlan(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One forward pass. A worker applies `closed`, then `opened`, then computes `rows` in this order."""

    step_id: int
    rows: tuple[StepRow, ...]
    opened: tuple[RowOpen, ...] = ()
    closed: tuple[int, ...] = ()


class SampledToken(msgspec.Struct, frozen=True, kw_only=True):
    """One token of a StepResult, in the order of the plan's sampling rows."""

    slot: int
    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    """(token, log probability), most likely first; as many as the row's top_logprobs."""
    stuck: bool = False
    """The row's grammar allows no token here: this one means nothing, and the output cannot be completed."""
    ids: tuple[float, ...] = ()
    """Log probabilities of the row's logprob_ids."""
    embedding: tuple[float, ...] = ()
    """Of an embedding engine: the unit vector of the last position, in place of a token."""


class TokenScore(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the model thought of one prompt token, given those before it."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    ids: tuple[float, ...] = ()


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a step produced. Times are CLOCK_MONOTONIC nanoseconds around the forward pass and sampling."""

    step_id: int
    sampled: tuple[SampledToken, ...]
    """In the order of the plan's sampling rows; what one row gives stands together, oldest first."""
    started_ns: int
    forward_ended_ns: int
    ended_ns: int
    scored: tuple[tuple[TokenScore, ...], ...] = ()
    """One tuple for each row of the plan that has scores, in the plan's order."""


def tokens_end(sampled: tuple[SampledToken, ...], first: int) -> int:
    """Where the tokens of the row that `sampled[first]` belongs to end."""
    slot, end = sampled[first].slot, first + 1
    while end < len(sampled) and sampled[end].slot == slot:
        end += 1
    return end
