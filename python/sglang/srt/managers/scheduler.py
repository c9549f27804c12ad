"""The only loop of an engine: it decides, a worker computes, a role says where KV comes from and goes to.

One turn: hear the frontend, hear the role's peers, take finished steps, admit, plan at most `depth` steps ahead,
answer. Nothing in it blocks; it sleeps in the waiter alone.
"""

import logging
from collections import deque

from sglang.srt.core.clock import Clock
from sglang.srt.core.grammar import Grammars, GrammarSpec, GrammarState, NoGrammars
from sglang.srt.core.ports import Waiter, Worker
from sglang.srt.core.states import RequestEvent, RequestState
from sglang.srt.core.step import SampledToken, StepResult, tokens_end
from sglang.srt.core.trace import Tracer
from sglang.srt.errors import EngineError
from sglang.srt.ipc.channel import Channel
from sglang.srt.managers.admission import reserve, reuse_limit
from sglang.srt.managers.finish import accept
from sglang.srt.managers.intake import Intake
from sglang.srt.managers.limits import Limits
from sglang.srt.managers.outbox import Outbox
from sglang.srt.managers.planner import Draft, Planner, Ticket
from sglang.srt.managers.queue import WaitingQueue
from sglang.srt.managers.request import Request
from sglang.srt.managers.role import Role, Route
from sglang.srt.managers.rows import Rows
from sglang.srt.managers.stall import Stall
from sglang.srt.managers.step_log import StepLog
from sglang.srt.managers.tally import Tally
from sglang.srt.managers.timeline import Timeline
from sglang.srt.mem_cache.cache_manager import CacheManager
from sglang.srt.messages.frontend import Refused, ToFrontend, ToScheduler

LOG = logging.getLogger(__name__)

IDLE_WAIT_S = 1.0
"""Longest sleep. Nothing depends on it: every source of work wakes the waiter."""


class Scheduler:
    """Owns every request, page and row of one engine replica. Implements `Desk` for its role."""

    def __init__(
        self,
        *,
        limits: Limits,
        cache: CacheManager,
        worker: Worker,
        role: Role,
        channel: Channel[ToScheduler, ToFrontend],
        waiter: Waiter,
        clock: Clock,
        tracer: Tracer,
        seed: int = 0,
        grammars: Grammars | None = None,
    ) -> None:
        self.cache = cache
        self.limits = limits
        self.role = role
        self.queue = WaitingQueue(limits.policy)
        self.requests: dict[str, Request] = {}
        """Requests that the client still waits for, by rid."""
        self.admitted: list[Request] = []
        """Requests that hold pages, oldest admission first."""
        self.tally = Tally()
        self.paused = False
        """Whether no steps are planned (/pause_generation)."""
        self.grammars: Grammars = grammars if grammars is not None else NoGrammars()
        self._worker = worker
        self._channel = channel
        self._waiter = waiter
        self._clock = clock
        self._tracer = tracer
        self._timeline = Timeline(tracer)
        self._rows = Rows(limits.max_running)
        self._planner = Planner(cache, self._rows, limits, role)
        self._outbox = Outbox(limits.stream_interval)
        self._intake = Intake(self, channel, seed)
        self._tickets: deque[Ticket] = deque()
        self._steps = 0
        self._log = StepLog(limits.log_interval)
        self._stall = Stall()
        role.attach(self)

    # --- the loop ---

    def run(self) -> None:
        """Turn until a Shutdown has been obeyed. EngineError from the worker ends the loop."""
        while not self.over:
            self.turn()
            if not self.over:
                self._waiter.wait(self._patience())

    @property
    def over(self) -> bool:
        """Whether a Shutdown has been obeyed."""
        return self._intake.over

    def turn(self) -> None:
        """One turn of the loop, without sleeping."""
        for message in self._channel.poll():
            self._intake.hear(message)
        self.role.poll()
        for spec, state in self.grammars.poll():
            self._compiled(spec, state)
        results = self._worker.poll()
        for result in results:
            self._take(result)
        self._watch(bool(results))
        while len(self._tickets) < self.limits.depth and self._step():
            pass
        for answer in self._outbox.take():
            self._channel.send(answer)
        if self.limits.check_invariants:
            self.cache.check()

    def _watch(self, progress: bool) -> None:
        """Raises EngineError where a step has run for longer than any step can."""
        age = self._stall.turn(self._clock.now(), waiting=bool(self._tickets) and not progress)
        if age > self.limits.step_timeout:
            raise EngineError(f"step {self._tickets[0].step_id} has run for {age:.0f} s: the worker hangs")

    def _patience(self) -> float:
        now = self._clock.now()
        due = min(self.role.deadline(), self.queue.next_due(now))
        return min(IDLE_WAIT_S, max(0.0, due - now))

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, held or running."""
        return not (self.requests or self.admitted or self._tickets)

    # --- planning ---

    def _step(self) -> bool:
        if self.paused:
            return False
        draft = Draft()
        for request in self.admitted:
            if request.state is RequestState.PREFILLING and request.planned < len(request.tokens):
                self._planner.chunk(draft, request)
        self._admit(draft)
        if not draft.rows or self.limits.mixed:
            for victim in self._planner.decode(draft, self.admitted):
                self.tally.retractions += 1
                self.settle(victim)
        if not draft.rows:
            return False
        self._submit(draft)
        return True

    def _submit(self, draft: Draft) -> None:
        plan, ticket = self._planner.finish(draft, self._steps)
        base = self._steps * self.limits.layers
        for request, row in ticket.rows:
            self.role.planned(request, row, base, ticket.step_id)
        self._steps += 1
        self._tickets.append(ticket)
        self._worker.submit(plan)
        self.tally.step(len(ticket.rows), ticket.prompt_tokens)
        if ticket.prompt_tokens:
            begun = [r.cached_tokens for r, row in ticket.rows if row.start == r.cached_tokens]
            self._log.prefill(sequences=len(begun), tokens=ticket.prompt_tokens, cached=sum(begun), gauges=self.gauges)
        else:
            self._log.decode(self.gauges)

    def _admit(self, draft: Draft) -> None:
        """Give pages to waiting requests, in order, until one does not fit."""
        if not (self._rows.free and self.queue):
            return
        prefilling = sum(len(r.tokens) - r.planned for r in self.admitted if r.state is RequestState.PREFILLING)
        for request, leader_done in self.queue.due(self.now(), self.cache):
            if not self._rows.free:
                return
            if prefilling and prefilling + len(request.tokens) > self.limits.max_prefill:
                return
            lease = self.cache.open(request.tokens, reuse_limit(request, self.role.samples))
            # Scores need this engine's own logits of the prompt (docs/adr/prompt-logprobs.md).
            scored = request.unscored >= 0
            route = Route.LOCAL if scored else self.role.route(request, lease.cached_tokens, leader_done)
            if route in (Route.WAIT, Route.REFUSED):
                self.cache.release(lease)
                continue
            if not reserve(self.cache, self.limits, request, lease, len(request.tokens), self.admitted):
                self.cache.release(lease)
                return
            request.lease = lease
            self._hold(request)
            if route is Route.REMOTE:
                request.on(RequestEvent.ADMIT_REMOTE)
                self.role.launch(request)
                continue
            self._start_local(draft, request)
            prefilling += len(request.tokens) - request.planned

    def _hold(self, request: Request) -> None:
        assert request.lease is not None
        self.queue.remove(request)
        self.queue.lead(request)
        self._timeline.admitted(request, self.now())
        self._rows.take(request)
        self.admitted.append(request)
        request.planned = request.computed = request.lease.cached_tokens
        if request.cached_tokens < 0:
            request.cached_tokens = request.lease.cached_tokens

    def _start_local(self, draft: Draft, request: Request) -> None:
        request.on(RequestEvent.ADMIT_LOCAL)
        self.role.admitted(request)
        if request.planned == len(request.tokens):
            self.role.prefilled(request)
        else:
            self._planner.chunk(draft, request)

    # --- results ---

    def _take(self, result: StepResult) -> None:
        ticket = self._tickets.popleft()
        assert ticket.step_id == result.step_id
        self.role.stepped(result)
        rows, started, ended = len(ticket.rows), result.started_ns, result.ended_ns
        self._tracer.slice("steps", f"step {result.step_id}", started, ended, rows=rows, prompt=ticket.prompt_tokens)
        self.tally.took(result)
        sampled, scored, taken = result.sampled, iter(result.scored), 0
        for request, row in ticket.rows:
            request.pending -= 1
            stop = row.start + row.length
            if stop > request.computed:
                request.computed = stop
            if row.scores:
                request.scores += next(scored)
            if row.sample:
                request.unsampled -= 1
                first, taken = taken, tokens_end(sampled, taken)
                if request.finish_reason is None:
                    self._sampled(request, sampled[first:taken])
            self._progressed(request, row.length)

    def _sampled(self, request: Request, tokens: tuple[SampledToken, ...]) -> None:
        if tokens[0].stuck:
            self.refuse(request, "the grammar allows no token here: no output can satisfy it", status=400)
            return
        self._accepted(request, accept(request, tokens))

    def _accepted(self, request: Request, count: int) -> None:
        self.tally.generated_tokens += count
        if request.first_token_at is None:
            self._timeline.first_token(request, self.now())
        self._outbox.touch(request)
        if request.finish_reason is not None:
            self._end(request)

    def _progressed(self, request: Request, length: int) -> None:
        if length > 1 and request.lease is not None and not request.lease.released:
            self.cache.commit(request.lease, request.tokens[: request.computed])
        if request.state is RequestState.RUNNING:
            return  # the usual case: nothing to settle
        if request.state is RequestState.PREFILLING and request.computed == len(request.tokens):
            self.role.prefilled(request)
        self.settle(request)

    def _compiled(self, spec: GrammarSpec, state: GrammarState) -> None:
        """Let the requests that waited for `spec` go on, or refuse them."""
        for request in [r for r in self.queue if r.compiling and r.sampling.grammar == spec]:
            request.compiling = False
            if state is GrammarState.REJECTED:
                self.refuse(request, self.grammars.reason(spec), status=400)

    # --- Desk ---

    def now(self) -> float:
        return self._clock.now()

    def enqueue(self, request: Request) -> None:
        self.requests[request.rid] = request
        self._timeline.queued(request)
        self.queue.add(request)

    def arrived(self, request: Request) -> None:
        request.on(RequestEvent.ARRIVED)
        request.planned = request.computed = len(request.tokens) - 1
        assert request.lease is not None
        self.cache.commit(request.lease, request.tokens[: request.computed])

    def returned(self, request: Request, not_before: float) -> None:
        request.on(RequestEvent.RETURNED)
        request.not_before = not_before
        self._let_go(request)
        self.queue.push_front(request)

    def refuse(self, request: Request, message: str, *, status: int = 503, retry_after_s: float | None = None) -> None:
        kind = "service_unavailable" if status == 503 else "invalid_request_error"
        self._outbox.refuse(
            Refused(rid=request.rid, status=status, kind=kind, message=message, retry_after_s=retry_after_s)
        )
        request.finish_reason = "refused"
        self._end(request)

    def end(self, request: Request, reason: str) -> None:
        request.finish_reason = reason
        if self.role.samples:
            self._outbox.touch(request)
        self._end(request)

    def settle(self, request: Request) -> None:
        if request.pending or self.role.holds(request):
            return
        if request.state is RequestState.DRAINING:
            request.on(RequestEvent.QUIET)
            self._let_go(request)
            self.role.released(request)
        elif request.state is RequestState.RETRACTING:
            request.on(RequestEvent.QUIET)
            self._let_go(request)
            self.queue.push_front(request)

    def retract_running(self) -> None:
        """Take the pages of every running request back; they are queued again, oldest first."""
        for request in [r for r in reversed(self.admitted) if r.state is RequestState.RUNNING]:
            request.on(RequestEvent.RETRACT)
            self.tally.retractions += 1
            self.settle(request)

    # --- ends ---

    def _end(self, request: Request) -> None:
        if request.state is RequestState.WAITING:
            self.queue.remove(request)
        request.on(RequestEvent.END)
        self.requests.pop(request.rid, None)
        if request.sampling.grammar is not None:
            self.grammars.release(request.sampling.grammar)
        self.tally.finished(request)
        self._timeline.ended(request, self.now())
        self.role.ended(request)
        self.queue.over(request)
        self.settle(request)

    def _let_go(self, request: Request) -> None:
        """Return row and pages; what is computed stays cached."""
        self.admitted.remove(request)
        self._rows.give(request)
        if request.lease is not None:
            self.cache.commit(request.lease, request.tokens[: request.computed])
            self.cache.release(request.lease)
            request.lease = None
        request.planned = request.computed = 0

    # --- state ---

    def gauges(self) -> dict[str, float]:
        """Instantaneous numbers, by metric name."""
        running = sum(r.state is RequestState.RUNNING for r in self.admitted)
        held, pages = self.cache.held, self.cache.num_pages
        return {
            "num_running_reqs": running,
            "num_queue_reqs": len(self.queue),
            "num_admitted_reqs": len(self.admitted),
            "num_used_tokens": held * self.cache.page_size,
            "max_total_num_tokens": pages * self.cache.page_size,
            "token_usage": held / pages,
            "num_steps_in_flight": len(self._tickets),
            "step_age_seconds": self._stall.age,
            **self.tally.gauges(self.now()),
            **self.role.gauges(),
        }

    def flush(self) -> int:
        """Drop every cached page that no request holds."""
        return self.cache.flush()

    def close(self) -> None:
        """Leave peers and stop the worker."""
        self.role.close()
        self._worker.close()
        self.grammars.close()
        self._tracer.close()
