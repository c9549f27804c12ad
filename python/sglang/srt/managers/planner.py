"""Builds the next step: prompt chunks, or decode rows, or both where mixed chunks are on."""

from collections import deque
from dataclasses import dataclass, field

from sglang.srt.core.states import RequestEvent, RequestState
from sglang.srt.core.step import RowOpen, StepPlan, StepRow
from sglang.srt.managers.limits import Limits
from sglang.srt.managers.request import Request
from sglang.srt.managers.role import Role
from sglang.srt.managers.rows import Rows
from sglang.srt.mem_cache.cache_manager import CacheManager

MAX_SCORED = 256
"""Prompt tokens a step of a request that wants their log probabilities: their logits take 256 x vocabulary x 4 bytes,
155 MB at 152,000 entries.
"""


@dataclass(slots=True)
class Draft:
    """A step under construction."""

    rows: list[tuple[Request, StepRow]] = field(default_factory=list)
    opened: list[RowOpen] = field(default_factory=list)
    tokens: int = 0
    """Prompt tokens in it."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A submitted step: who its rows belong to, in the plan's order."""

    step_id: int
    rows: tuple[tuple[Request, StepRow], ...]
    prompt_tokens: int


class Planner:
    """Turns requests that hold pages into rows, and keeps their positions in step."""

    def __init__(self, cache: CacheManager, rows: Rows, limits: Limits, role: Role) -> None:
        self._cache = cache
        self._rows = rows
        self._limits = limits
        self._role = role

    def chunk(self, draft: Draft, request: Request) -> None:
        """Add the next chunk of a prefilling request, as large as the step's token budget allows."""
        length = min(len(request.tokens) - request.planned, self._limits.chunk - draft.tokens)
        scored = request.unscored >= 0
        if scored:
            length = min(length, MAX_SCORED)
        if length <= 0:
            return
        stop = request.planned + length
        last = stop == len(request.tokens)
        tokens = tuple(request.tokens[request.planned : stop])
        draft.tokens += length
        first, scores = scores_of(request, stop) if scored else (0, ())
        self._add(draft, request, tokens, length, sample=last and self._role.samples, score_at=first, scores=scores)
        if last and self._role.samples:
            request.on(RequestEvent.PREFILLED)

    def decode(self, draft: Draft, running: list[Request]) -> list[Request]:
        """Add a row for every running request that may generate another token, oldest first.

        Returns the requests that must lose their pages so that older ones can go on.
        """
        victims: list[Request] = []
        leaving = any(r.pending and r.state in (RequestState.RETRACTING, RequestState.DRAINING) for r in running)
        taken = {id(request) for request, _ in draft.rows}
        candidates = deque(
            request
            for request in running
            if request.state is RequestState.RUNNING
            and request.generated + request.unsampled < request.limit
            and id(request) not in taken
        )
        while candidates:
            request = candidates.popleft()
            assert request.lease is not None
            while self._cache.extend(request.lease, request.planned + 1) is None:
                if leaving or not candidates:
                    break  # pages are on their way, or come with the next transfer that arrives
                victim = candidates.pop()
                victims.append(victim)
                victim.on(RequestEvent.RETRACT)
                leaving = victim.pending > 0
                if not leaving:
                    self._drop_pages(victim)
            else:
                fed = request.planned < len(request.tokens)
                tokens = (request.tokens[request.planned],) if fed else ()
                self._add(draft, request, tokens, 1, sample=True)
        return victims

    def _drop_pages(self, victim: Request) -> None:
        assert victim.lease is not None
        self._cache.commit(victim.lease, victim.tokens[: victim.computed])
        self._cache.release(victim.lease)
        victim.lease = None

    def _add(
        self,
        draft: Draft,
        request: Request,
        tokens: tuple[int, ...],
        length: int,
        *,
        sample: bool,
        score_at: int = 0,
        scores: tuple[int, ...] = (),
    ) -> None:
        assert request.lease is not None
        opening = self._rows.opening(request)
        if opening is not None:
            draft.opened.append(opening)
        row = StepRow(
            slot=request.row,
            start=request.planned,
            length=length,
            tokens=tokens,
            new_pages=tuple(request.lease.pages[request.mapped :]) if len(request.lease.pages) > request.mapped else (),
            sample=sample,
            score_at=score_at,
            scores=scores,
        )
        request.mapped = len(request.lease.pages)
        request.planned += length
        request.pending += 1
        request.unsampled += sample
        draft.rows.append((request, row))

    def finish(self, draft: Draft, step_id: int) -> tuple[StepPlan, Ticket]:
        """The plan to submit and the ticket to keep."""
        plan = StepPlan(
            step_id=step_id,
            rows=tuple(row for _, row in draft.rows),
            opened=tuple(draft.opened),
            closed=self._rows.take_closed(),
        )
        return plan, Ticket(step_id, tuple(draft.rows), draft.tokens)


def scores_of(request: Request, stop: int) -> tuple[int, tuple[int, ...]]:
    """(offset in the chunk, tokens to score) of the chunk from `planned` to `stop`."""
    first = max(request.planned, request.unscored)
    last = min(stop, request.prompt_length - 1)
    if first >= last:
        return 0, ()
    return first - request.planned, tuple(request.tokens[first + 1 : last + 1])
