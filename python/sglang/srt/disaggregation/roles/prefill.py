"""A prefill engine: it fills KV for decode engines and posts each layer's pages while the forward still runs.

Walk 4 of the design, the prefill side. It never samples and never sees a prompt's last token. For every (step,
request) the messenger is handed one program before the step is submitted; from there on native code watches the
counter.
"""

import logging
from itertools import count

from sglang.srt.core.layout import ShardLayout
from sglang.srt.core.ports import KVMessenger, MessengerEvent, WritesDone, WritesEnded
from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.states import RequestState
from sglang.srt.core.step import StepResult, StepRow
from sglang.srt.core.trace import Tracer
from sglang.srt.disaggregation.handoff.acquaintance import GuestState
from sglang.srt.disaggregation.handoff.immediates import MAX_SLOTS
from sglang.srt.disaggregation.handoff.ledger import Outbound
from sglang.srt.disaggregation.handoff.replay import Fate, Greeting, judge_ask
from sglang.srt.disaggregation.handoff.states import SOURCE_ENDS, SourceEvent, SourceState
from sglang.srt.disaggregation.handshake import ask_problem
from sglang.srt.disaggregation.roles.guests import SAID, Guest, Guests
from sglang.srt.disaggregation.roles.link import PeerLink
from sglang.srt.disaggregation.roles.pace import Pace
from sglang.srt.disaggregation.roles.sending import Sending
from sglang.srt.disaggregation.roles.settings import RoleSettings
from sglang.srt.disaggregation.shardmap.plan import plan_copies
from sglang.srt.managers.request import Request
from sglang.srt.managers.role import Desk, Role
from sglang.srt.messages.wire import (
    AskAdmitted,
    AskQueued,
    AskRejected,
    Cancel,
    Drained,
    Farewell,
    Heartbeat,
    Hello,
    PrefillAsk,
    PrefillFailed,
    ToDecode,
    ToPrefill,
)

LOG = logging.getLogger(__name__)

BUSY_RETRY_MS = 200
"""Hint in a rejection for a full queue: about one prefill of 500 tokens here."""

LEAVING_RETRY_MS = 2000
"""Hint in a rejection while leaving: nobody will be here sooner than an engine starts (6 s here)."""


class PrefillRole(Role):
    """The prefill side of every transfer, in the scheduler's thread."""

    name = "prefill"
    samples = False

    def __init__(
        self,
        *,
        messenger: KVMessenger,
        link: PeerLink[ToPrefill, ToDecode],
        layout: ShardLayout,
        incarnation: int,
        context: int,
        vocabulary: int,
        settings: RoleSettings,
        tracer: Tracer,
    ) -> None:
        self._messenger = messenger
        self._link = link
        self._layout = layout
        self._context = context
        self._vocabulary = vocabulary
        self._settings = settings
        self._incarnation = incarnation
        self._guests = Guests(link=link, messenger=messenger, layout=layout, incarnation=incarnation, settings=settings)
        self._live: dict[tuple[str, int], Outbound] = {}
        self._by_request: dict[Request, Outbound] = {}
        self._sending = Sending(messenger, tracer)
        self._pace = Pace()
        self._serial = count(1)
        self._done = self._failed = self._stale = 0
        self._leaving = False
        self._desk: Desk

    def attach(self, desk: Desk) -> None:
        self._desk = desk

    def leave(self) -> None:
        """Transfers that were accepted are finished; new asks are sent elsewhere."""
        LOG.info("leaving: %d transfers to finish, %d decode engines are told", len(self._live), len(self._guests))
        self._leaving = True
        self._guests.leave(self._desk.now())

    def departed(self) -> bool:
        return self._guests.departed(self._desk.now())

    # --- the loop's hooks ---

    def poll(self) -> None:
        now = self._desk.now()
        for name, message in self._link.poll():
            self._hear(name, message, now)
        for event in self._messenger.poll():
            self._see(event)
        for guest in self._guests.tick(now):
            parted = guest.state is GuestState.PARTED
            self._lose(guest.name, "it has left" if parted else f"silent for {now - guest.heard_at:.1f} s")
        for outbound in [o for o in self._live.values() if o.state is SourceState.QUEUED and o.deadline <= now]:
            self._reject(outbound, "its deadline passed in the queue", BUSY_RETRY_MS)

    def deadline(self) -> float:
        queued = (o.deadline for o in self._live.values() if o.state is SourceState.QUEUED)
        return min(min(queued, default=float("inf")), self._guests.deadline())

    def _hear(self, name: str, message: ToPrefill, now: float) -> None:
        match message:
            case Hello():
                self._greeted(name, message, now)
            case Heartbeat():
                self._guests.beat(name, message, now)
            case PrefillAsk():
                self._asked(name, message, now)
            case Cancel():
                self._cancelled(name, message)
            case Farewell():
                self._stale += not self._guests.parted(name, message)

    def _greeted(self, name: str, hello: Hello, now: float) -> None:
        match self._guests.judge(name, hello):
            case Greeting.NEW:
                self._lose(name, "it says hello again")
                self._guests.welcome(name, hello, now)
            case Greeting.REPEATED:
                self._guests.repeat(name, hello, now)
            case Greeting.STALE:
                self._stale += 1
                self._guests.want(name, hello.greeting)

    # --- asks ---

    def _asked(self, name: str, ask: PrefillAsk, now: float) -> None:
        guest = self._guests.get(name)
        known = self._live.get((name, ask.transfer))
        fate = judge_ask(
            guest.life if guest else None,
            ask.transfer,
            greeting=ask.greeting,
            addressee=ask.incarnation,
            own=self._incarnation,
            copy=known is not None and known.generation == ask.generation,
        )
        match fate:
            case Fate.UNGREETED:
                self._guests.want(name, ask.greeting)
            case Fate.STALE:
                self._stale += 1
            case Fate.OPEN:
                assert guest is not None
                self._consider(name, guest, ask, now)

    def _consider(self, name: str, guest: Guest, ask: PrefillAsk, now: float) -> None:
        """An ask that may be obeyed: is it possible, and is there room?"""
        problem = self._problem(ask, guest)
        if problem:
            LOG.error("ask of %s refused: %s", name, problem)
            self._answer_reject(name, ask, problem, 0)
        elif self._leaving:
            self._answer_reject(name, ask, "this prefill engine is shutting down", LEAVING_RETRY_MS)
        elif len(self._live) >= self._settings.max_asks:
            self._answer_reject(name, ask, f"{len(self._live)} asks are queued already", BUSY_RETRY_MS)
        else:
            self._open(name, guest, ask, now)

    def _problem(self, ask: PrefillAsk, guest: Guest) -> str:
        problem = ask_problem(
            ask,
            destination=guest.layout,
            slots=MAX_SLOTS,
            context=self._context,
            vocabulary=self._vocabulary,
        )
        pages = self._desk.cache.pages_for(len(ask.token_ids))
        if not problem and pages > self._desk.cache.num_pages:
            return f"{len(ask.token_ids)} tokens need {pages} pages; this pool has {self._desk.cache.num_pages}"
        return problem

    def _answer_reject(self, name: str, ask: PrefillAsk, reason: str, retry_ms: int) -> None:
        self._link.send(
            name,
            AskRejected(transfer=ask.transfer, generation=ask.generation, reason=reason, retry_after_ms=retry_ms),
        )

    def _open(self, name: str, guest: Guest, ask: PrefillAsk, now: float) -> None:
        request = Request(
            rid=f"{name}/{ask.transfer}.{ask.generation}.{next(self._serial)}",
            tokens=list(ask.token_ids),
            prompt_length=len(ask.token_ids),
            sampling=SamplingParams(),
            seed=0,
            arrived=now,
            limit=0,
            trace=ask.trace,
        )
        queued = sum(len(o.request.tokens) - o.request.computed for o in self._live.values())
        estimate = self._pace.estimate_ms(queued + len(ask.token_ids))
        outbound = Outbound(
            request=request,
            peer=name,
            number=ask.transfer,
            generation=ask.generation,
            slot=ask.slot,
            first_page=ask.first_page,
            pages=ask.pages,
            copies=plan_copies(self._layout, guest.layout, ask.replica_key),
            deadline=now + min(ask.deadline_ms / 1000, self._settings.allowed_s(estimate)),
            sent_to=ask.first_page,
        )
        self._live[name, ask.transfer] = self._by_request[request] = outbound
        self._desk.enqueue(request)
        self._link.send(name, AskQueued(transfer=ask.transfer, generation=ask.generation, estimate_ms=estimate))

    def _reject(self, outbound: Outbound, reason: str, retry_ms: int) -> None:
        """Turn down one that is still queued."""
        outbound.on(SourceEvent.CANCEL)
        self._link.send(
            outbound.peer,
            AskRejected(
                transfer=outbound.number, generation=outbound.generation, reason=reason, retry_after_ms=retry_ms
            ),
        )
        self._forget(outbound)
        self._desk.end(outbound.request, "abort")

    def _cancelled(self, name: str, cancel: Cancel) -> None:
        if cancel.incarnation != self._incarnation:
            self._guests.want(name, cancel.greeting)
            return
        outbound = self._live.get((name, cancel.transfer))
        if outbound is None or outbound.generation != cancel.generation:
            self._guests.cancelled(name, cancel.transfer)
            self._link.send(name, Drained(transfer=cancel.transfer, generation=cancel.generation, broken=False))
            return
        self._stop(outbound, SourceEvent.CANCEL)

    # --- the life of a transfer ---

    def admitted(self, request: Request) -> None:
        outbound = self._by_request[request]
        outbound.on(SourceEvent.ADMIT)
        self._link.send(
            outbound.peer,
            AskAdmitted(transfer=outbound.number, generation=outbound.generation, cached_tokens=request.cached_tokens),
        )
        self._sending.arm(outbound, request.cached_tokens // self._layout.kv.page_size, None, None)

    def planned(self, request: Request, row: StepRow, base: int, step_id: int) -> None:
        outbound = self._by_request[request]
        self._pace.submitted(step_id, row.length)
        stop = row.start + row.length
        page_size = self._layout.kv.page_size
        last = stop == len(request.tokens)
        self._sending.arm(outbound, -(-stop // page_size) if last else stop // page_size, base, step_id)

    def stepped(self, result: StepResult) -> None:
        self._sending.stepped(result)
        self._pace.stepped(result)

    def prefilled(self, request: Request) -> None:
        self._by_request[request].on(SourceEvent.COMPUTED)
        self._desk.end(request, "prefilled")

    def _see(self, event: MessengerEvent) -> None:
        match event:
            case WritesDone() | WritesEnded():
                outbound = self._sending.ended(event)
                if isinstance(event, WritesEnded) and event.reason:
                    outbound.why, outbound.broken = outbound.why or event.reason, True
                    self._stop(outbound, SourceEvent.WRITE_FAILED)
                if not outbound.handles:
                    self._desk.settle(outbound.request)
            case _:
                pass

    def _stop(self, outbound: Outbound, event: SourceEvent) -> None:
        """Compute and post nothing more for it; released() tells the rest once all is quiet."""
        if outbound.on(event):
            self._finish(outbound)
        self._sending.cancel(outbound)
        if not outbound.request.ended:
            self._desk.end(outbound.request, "abort")

    def ended(self, request: Request) -> None:
        """Ended by the engine itself (shutdown, /abort_request): the decode engine hears that it failed."""
        outbound = self._by_request.get(request)
        if outbound is not None and outbound.state in (SourceState.QUEUED, SourceState.PREFILLING):
            outbound.why = "aborted by the prefill engine"
            if outbound.state is SourceState.QUEUED:
                outbound.on(SourceEvent.ADMIT)
            self._stop(outbound, SourceEvent.WRITE_FAILED)
            if request.state is RequestState.FINISHED:
                self.released(request)

    def holds(self, request: Request) -> bool:
        outbound = self._by_request.get(request)
        return outbound is not None and bool(outbound.handles)

    def released(self, request: Request) -> None:
        outbound = self._by_request.get(request)
        if outbound is not None and outbound.on(SourceEvent.QUIET):
            self._finish(outbound)

    def _finish(self, outbound: Outbound) -> None:
        """The transfer is over; the happy end says nothing, as the decode engine counts."""
        number, generation, broken = outbound.number, outbound.generation, outbound.broken
        if outbound.state is SourceState.DRAINED:
            self._link.send(outbound.peer, Drained(transfer=number, generation=generation, broken=broken))
        elif outbound.state is SourceState.FAILED:
            self._failed += 1
            reason = (outbound.why or "unknown")[:SAID]
            failed = PrefillFailed(transfer=number, generation=generation, reason=reason, broken=broken)
            self._link.send(outbound.peer, failed)
        elif outbound.state is SourceState.DONE:
            self._done += 1
        self._forget(outbound)

    def _forget(self, outbound: Outbound) -> None:
        del self._live[outbound.peer, outbound.number], self._by_request[outbound.request]
        self._guests.stay(self._desk.now())

    def _lose(self, name: str, why: str) -> None:
        """Stop everything for a decode engine and close the way to it. A no-op for a stranger."""
        if self._guests.get(name) is None:
            return
        LOG.warning("decode engine %s is dropped: %s", name, why)
        self._guests.drop(name)
        for outbound in [o for o in self._live.values() if o.peer == name and o.state not in SOURCE_ENDS]:
            self._stop(outbound, SourceEvent.PEER_LOST)

    # --- state ---

    def gauges(self) -> dict[str, float]:
        states = [outbound.state for outbound in self._live.values()]
        return {
            "num_prefill_prealloc_queue_reqs": states.count(SourceState.QUEUED),
            "num_prefill_inflight_queue_reqs": len(states),
            "num_programs_in_flight": self._sending.programs,
            "num_decode_engines": len(self._guests),
            "prefill_tokens_per_second": self._pace.tokens_per_second,
        }

    def counters(self) -> dict[str, float]:
        return {
            "num_transfers_total": self._done,
            "num_transfer_failed_reqs_total": self._failed,
            **self._sending.counters(),
            "control_frames_stale_total": self._stale,
            **self._link.counters(),
            **self._messenger.counters(),
        }

    def info(self) -> dict[str, str]:
        return {"fabric_provider": self._messenger.provider}

    def close(self) -> None:
        self._link.close()
        self._messenger.close()
