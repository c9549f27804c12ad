"""A request as its scheduler knows it: integers, a state, and what it holds."""

from dataclasses import dataclass, field

from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.states import REQUEST_TABLE, RequestEvent, RequestState
from sglang.srt.core.step import SampledToken, TokenScore
from sglang.srt.mem_cache.cache_manager import PageLease


@dataclass(slots=True, eq=False)
class Request:
    """One request in one engine. Only the scheduler and its role change it."""

    rid: str
    tokens: list[int]
    """Prompt, then every accepted output."""
    prompt_length: int
    sampling: SamplingParams
    seed: int
    arrived: float
    """Seconds on the engine's clock."""
    limit: int
    """Output tokens at most: the client's wish, clipped to the context and the pool."""
    group: str = ""
    priority: int = 0
    state: RequestState = RequestState.WAITING
    lease: PageLease | None = None
    """Its pages, from admission until nothing can touch them any more."""
    row: int = -1
    """Row slot in the worker; -1 while it has none."""
    row_open: bool = False
    """Whether a submitted plan opened the row."""
    mapped: int = 0
    """Pages of the lease that the worker's block table knows."""
    planned: int = 0
    """Positions whose KV a submitted step computes or has computed, or that arrived by transfer."""
    computed: int = 0
    """Positions whose KV is certainly present."""
    pending: int = 0
    """Submitted steps that hold a row of this request and have not been answered."""
    unsampled: int = 0
    """Of those, steps whose sampled token is still to come."""
    cached_tokens: int = -1
    """Prompt tokens that were not computed for this request; -1 before the first admission."""
    attempts: int = 0
    """Transfers tried."""
    compiling: bool = False
    """Its grammar is not ready: it waits, others pass."""
    not_before: float = 0.0
    """Earliest time of the next admission, after a refusal with a retry hint."""
    place: tuple[int, int] = (0, 0)
    """Where it belongs in the waiting queue."""
    finish_reason: str | None = None
    matched_stop: int | None = None
    admitted_at: float | None = None
    first_token_at: float | None = None
    trace: str = ""
    """W3C traceparent of the client's request; empty where nobody traces."""
    unsent: list[SampledToken] = field(default_factory=list)
    """Accepted since the last TokenOut."""
    scores: list[TokenScore] = field(default_factory=list)
    """Of prompt tokens, where the client wants them."""
    scores_sent: bool = False

    @property
    def generated(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def unscored(self) -> int:
        """The first position whose logits are still wanted for the score of the token after it; -1 where none is."""
        first = self.sampling.scored_from
        if first < 0 or first + len(self.scores) >= self.prompt_length - 1:
            return -1
        return first + len(self.scores)

    @property
    def ended(self) -> bool:
        """Whether the client has its finish reason."""
        return self.finish_reason is not None

    def on(self, event: RequestEvent) -> None:
        """Move along the table; raises EngineError for a move that cannot happen."""
        self.state = REQUEST_TABLE.next(self.state, event)
