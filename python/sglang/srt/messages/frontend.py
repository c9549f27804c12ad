"""What the HTTP process and the scheduler process say to each other.

Tokens cross this seam, never text: the frontend owns the tokenizer, the chat template and stop strings; the scheduler
owns pages and batches. Every struct is frozen and tagged; `codec.py` bounds and versions the frames.
"""

from typing import Literal

import msgspec

from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.step import TokenScore

# --- frontend -> scheduler ------------------------------------------------------------------------------------------


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """Start one request; n > 1 is n of these that share a `group`."""

    rid: str
    token_ids: tuple[int, ...]
    sampling: SamplingParams
    group: str = ""
    """Requests of one group have equal token_ids; the engine computes and transfers their prompt once."""
    trace: str = ""
    """W3C traceparent, where requests are traced."""
    priority: int = 0
    """Larger runs earlier under --schedule-policy priority."""


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Stop a request wherever it is. The scheduler answers with a final TokenOut (finish_reason abort) if `rid` lives.

    Also sent when the detokenizer finds a stop string, in which case the frontend drops that answer.
    """

    rid: str


class AbortAll(msgspec.Struct, frozen=True, kw_only=True, tag="abort_all"):
    """Stop every request."""


class FlushCache(msgspec.Struct, frozen=True, kw_only=True, tag="flush_cache"):
    """Drop every cached page that no request uses."""

    call: int


class Pause(msgspec.Struct, frozen=True, kw_only=True, tag="pause"):
    """Plan no more steps until Resume; requests are still taken. Answered by Done.

    "abort" ends what runs, "in_place" keeps it where it is, "retract" takes the pages of running requests back, so that
    the cache can be flushed; they go on from their tokens.
    """

    call: int
    mode: Literal["abort", "in_place", "retract"]


class Resume(msgspec.Struct, frozen=True, kw_only=True, tag="resume"):
    """Go on. Answered by Done."""

    call: int


class Profile(msgspec.Struct, frozen=True, kw_only=True, tag="profile"):
    """Begin or end a torch profile of the compute thread. Answered by Done, at its end once the file is there."""

    call: int
    start: bool
    folder: str = ""


class GetState(msgspec.Struct, frozen=True, kw_only=True, tag="get_state"):
    """Ask for a snapshot of gauges and counters; also proves that the scheduler's loop turns."""

    call: int


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag="shutdown"):
    """Leave the loop. With `drain`, first refuse new requests and finish those that run."""

    drain: bool = True


ToScheduler = Generate | Abort | AbortAll | FlushCache | Pause | Resume | Profile | GetState | Shutdown

# --- scheduler -> frontend ------------------------------------------------------------------------------------------


class TokenOut(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """New tokens of one request since the last TokenOut, and its end where `finish_reason` is set."""

    rid: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    """One a token, where the request asked for them."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """(token, log probability) alternatives, one tuple a token."""
    finish_reason: str | None = None
    """None while it runs; "stop" (a stop token), "length", "abort"."""
    matched_stop: int | None = None
    """The stop token that ended it; it is the last of token_ids."""
    id_logprobs: tuple[tuple[float, ...], ...] = ()
    """Log probabilities of the request's logprob_ids, one tuple a token."""
    prompt_scores: tuple[TokenScore, ...] = ()
    """Of the prompt's tokens after scored_from; sent once, with the first token."""
    embedding: tuple[float, ...] = ()
    """Of an embedding engine."""
    cached_tokens: int = 0
    """Prompt tokens whose KV was reused from a prefix tree, on either side of a disaggregated pair."""


class Outputs(msgspec.Struct, frozen=True, kw_only=True, tag="outputs"):
    """Everything one turn of the scheduler's loop produced."""

    items: tuple[TokenOut, ...]


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """A request cannot be served. Final: no TokenOut follows."""

    rid: str
    status: int
    kind: str
    message: str
    retry_after_s: float | None = None


class FlushReply(msgspec.Struct, frozen=True, kw_only=True, tag="flush_reply"):
    """Answer to FlushCache: how many pages were freed."""

    call: int
    pages: int


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """Answer to Pause, Resume and Profile: what came of it, or why it failed."""

    call: int
    text: str = ""
    failed: bool = False


class State(msgspec.Struct, frozen=True, kw_only=True, tag="state"):
    """Answer to GetState.

    Keys are metric names without prefix (see observability/metrics.py). Gauges are instantaneous, counters grow only.
    """

    call: int
    gauges: dict[str, float]
    counters: dict[str, float]
    info: dict[str, str]
    samples: dict[str, tuple[float, ...]] = {}
    """Observations since the last snapshot (seconds, bytes, ...), for histograms and for the demo's report."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Sent once, when the scheduler can take requests."""

    max_total_tokens: int
    max_running_requests: int
    context_length: int
    page_size: int
    model: str
    role: str


ToFrontend = Outputs | Refused | FlushReply | Done | State | Ready
