"""A decode engine: it reserves pages, asks a prefill engine to fill them, counts, and decodes.

Walk 4 of the design, the decode side: a request's destination pages and counting slot exist, and the expected weight is
registered, before the ask leaves. Nobody tells this side that a transfer is complete: the count does.
"""

import logging
from itertools import count

from sglang.srt.core.layout import ShardLayout
from sglang.srt.core.ports import KVMessenger, MessengerEvent, PeerUnreachable, SlotFilled
from sglang.srt.core.states import RequestState
from sglang.srt.core.trace import Tracer
from sglang.srt.disaggregation.handoff.acquaintance import ACQUAINTED, PeerState
from sglang.srt.disaggregation.handoff.ledger import Inbound, TransferSlots
from sglang.srt.disaggregation.handoff.states import DestinationEvent, DestinationState
from sglang.srt.disaggregation.roles.link import DialledLink
from sglang.srt.disaggregation.roles.observations import Observations
from sglang.srt.disaggregation.roles.peers import Peer, Peers, first_number
from sglang.srt.disaggregation.roles.routing import Routing
from sglang.srt.disaggregation.roles.settings import RoleSettings
from sglang.srt.disaggregation.shardmap.plan import expected_weight, plan_copies
from sglang.srt.managers.request import Request
from sglang.srt.managers.role import Desk, Role, Route
from sglang.srt.messages.wire import (
    AskAdmitted,
    AskQueued,
    AskRejected,
    Cancel,
    Drained,
    Heartbeat,
    HelloReply,
    HelloWanted,
    Leaving,
    PrefillAsk,
    PrefillFailed,
    ToDecode,
    ToPrefill,
)

LOG = logging.getLogger(__name__)

RETRY_PAUSE_S = 0.05
"""How often a request is looked at again while no prefill engine is usable."""


class DecodeRole(Role):
    """The decode side of every transfer, in the scheduler's thread.

    Told to leave, it finishes what it owns first, and still needs its prefill engines for that, but waits for none that
    is not there.
    """

    name = "decode"

    def __init__(
        self,
        *,
        messenger: KVMessenger,
        link: DialledLink[ToDecode, ToPrefill],
        layout: ShardLayout,
        peers: tuple[str, ...],
        incarnation: int,
        settings: RoleSettings,
        tracer: Tracer,
    ) -> None:
        self._tracer = tracer
        self._messenger = messenger
        self._link = link
        self._layout = layout
        self._settings = settings
        self._peers = Peers(
            peers, link=link, messenger=messenger, layout=layout, incarnation=incarnation, settings=settings
        )
        self._routing = Routing(self._peers, settings)
        self._slots = TransferSlots(settings.slots)
        self._live: dict[int, Inbound] = {}
        self._by_request: dict[Request, Inbound] = {}
        self._by_slot: dict[int, Inbound] = {}
        # Numbers of another life must never be met again: an answer may be that old.
        self._numbers = count(first_number(incarnation))
        self._observed = Observations()
        self._failed = 0
        self._desk: Desk

    def attach(self, desk: Desk) -> None:
        self._desk = desk

    def leave(self) -> None:
        self._routing.leave()

    # --- routing and asking ---

    def route(self, request: Request, cached: int, leader_done: bool) -> Route:
        lacking = len(request.tokens) - 1 - cached
        tail_of_group = leader_done and lacking < self._layout.kv.page_size
        if lacking <= self._settings.local_tokens or tail_of_group:
            return Route.LOCAL
        now = self._desk.now()
        route = self._routing.route(request, now, self._slots.free > 0)
        if route is Route.WAIT:
            request.not_before = now + RETRY_PAUSE_S
        elif route is Route.REFUSED:
            self._desk.refuse(request, self._routing.epitaph(request), retry_after_s=1.0)
        return route

    def launch(self, request: Request) -> None:
        now = self._desk.now()
        peer = self._routing.choose(request, now)
        assert peer is not None
        inbound = self._open(request, peer, now)
        assert request.lease is not None
        first_page = request.lease.cached_tokens // self._layout.kv.page_size
        ask = PrefillAsk(
            incarnation=peer.incarnation,
            greeting=peer.greeting,
            transfer=inbound.number,
            generation=inbound.generation,
            slot=inbound.slot,
            token_ids=tuple(request.tokens[:-1]),
            first_page=first_page,
            pages=tuple(request.lease.pages[first_page : self._last_page(request)]),
            replica_key=inbound.number,
            deadline_ms=int(1000 * self._settings.transfer_cap_s),
            trace=request.trace,
        )
        if not self._link.send(peer.name, ask):
            self._lose(peer, "the control connection is down")

    def _last_page(self, request: Request) -> int:
        return -(-(len(request.tokens) - 1) // self._layout.kv.page_size)

    def _open(self, request: Request, peer: Peer, now: float) -> Inbound:
        assert request.lease is not None and peer.layout is not None
        number = next(self._numbers)
        copies = plan_copies(peer.layout, self._layout, number)
        first_page = request.lease.cached_tokens // self._layout.kv.page_size
        inbound = Inbound(
            request=request,
            number=number,
            generation=request.attempts,
            peer=peer.name,
            slot=self._slots.take(),
            weight=expected_weight(copies, first_page, self._last_page(request), self._layout.kv.layers),
            tokens=len(request.tokens) - 1,
            asked_at=now,
            deadline=now + self._settings.ask_timeout_s,
        )
        peer.load += inbound.tokens
        self._live[number] = self._by_request[request] = self._by_slot[inbound.slot] = inbound
        self._messenger.expect(inbound.slot, inbound.weight)
        return inbound

    # --- the loop's hooks ---

    def poll(self) -> None:
        now = self._desk.now()
        for name, message in self._link.poll():
            self._hear(self._peers[name], message, now)
        for event in self._messenger.poll():
            self._see(event)
        for peer in (self._peers[name] for name in self._link.hung_up()):
            if peer.state in ACQUAINTED:
                self._lose(peer, "it closed the control connection and takes no other")
        for peer in self._peers.tick(now):
            self._lose(peer, f"silent for {now - peer.heard_at:.1f} s")
        for inbound in [i for i in self._live.values() if i.deadline <= now]:
            self._late(inbound, now)

    def deadline(self) -> float:
        transfers = min((inbound.deadline for inbound in self._live.values()), default=float("inf"))
        return min(transfers, self._peers.deadline())

    def _hear(self, peer: Peer, message: ToDecode, now: float) -> None:
        match message:
            case HelloReply():
                self._peers.replied(peer, message, now)
            case HelloWanted(incarnation=incarnation, greeting=greeting):
                if peer.regions and greeting == peer.greeting:
                    self._lose(peer, f"it asks for a greeting (incarnation {incarnation})")
            case Leaving(incarnation=incarnation):
                self._peers.leaving(peer, incarnation)
                self._part(peer)
            case Heartbeat(incarnation=incarnation):
                if incarnation == peer.incarnation:
                    peer.heard_at = now
            case _:
                inbound = self._live.get(message.transfer)
                if inbound is not None and inbound.peer == peer.name and inbound.generation == message.generation:
                    self._answer(inbound, peer, message, now)

    def _answer(
        self,
        inbound: Inbound,
        peer: Peer,
        message: AskQueued | AskAdmitted | AskRejected | PrefillFailed | Drained,
        now: float,
    ) -> None:
        settings = self._settings
        match message:
            case PrefillFailed(broken=True) | Drained(broken=True):
                # A connection that broke may still hold bytes for these pages (as TCP's receive buffer does).
                self._lose(peer, f"a write of transfer {inbound.number} failed")
            case AskQueued(estimate_ms=estimate):
                if inbound.state is DestinationState.ASKED:
                    inbound.deadline = now + settings.allowed_s(estimate)
                self._move(inbound, DestinationEvent.ACK)
            case AskAdmitted(cached_tokens=cached):
                request = inbound.request
                if request.attempts == 0 and not request.generated:
                    known = min(max(cached, request.cached_tokens), inbound.tokens)
                    request.cached_tokens = max(request.cached_tokens, known)
            case AskRejected(reason=reason, retry_after_ms=retry):
                peer.busy_until = max(peer.busy_until, now + min(retry / 1000, settings.retry_cap_s))
                inbound.why, inbound.hinted, inbound.refused = reason, retry > 0, retry == 0
                self._move(inbound, DestinationEvent.REJECT)
            case PrefillFailed(reason=reason):
                inbound.why = reason
                self._failed += 1
                self._move(inbound, DestinationEvent.FAIL)
            case Drained():
                self._move(inbound, DestinationEvent.DRAINED)

    def _see(self, event: MessengerEvent) -> None:
        match event:
            case SlotFilled(slot=slot, at_ns=at_ns):
                inbound = self._by_slot.get(slot)
                if inbound is not None:
                    self._observe(inbound, at_ns)
                    self._move(inbound, DestinationEvent.COMPLETE)
            case PeerUnreachable(peer=name, reason=reason):
                self._lose(self._peers[name], reason)
            case _:
                pass

    def _observe(self, inbound: Inbound, at_ns: int) -> None:
        assert inbound.request.lease is not None
        page_bytes = sum(self._layout.page_bytes(rank) for rank in range(self._layout.tp_size))
        pages = self._last_page(inbound.request) - inbound.request.lease.cached_tokens // self._layout.kv.page_size
        size = pages * page_bytes * self._layout.kv.layers
        self._observed.transfer(at_ns / 1e9 - inbound.asked_at, size)
        rid = inbound.request.rid
        self._tracer.slice("transfers", "transfer", int(inbound.asked_at * 1e9), at_ns, rid=rid, bytes=size)

    # --- ends ---

    def _move(self, inbound: Inbound, event: DestinationEvent) -> None:
        if inbound.on(event):
            self._close(inbound)

    def _close(self, inbound: Inbound) -> None:
        """The transfer is over and nothing of it can land: free the slot, tell the scheduler."""
        del self._live[inbound.number], self._by_request[inbound.request], self._by_slot[inbound.slot]
        self._messenger.forget(inbound.slot)
        self._slots.give(inbound.slot)
        peer = self._peers[inbound.peer]
        peer.load = max(0, peer.load - inbound.tokens)
        request = inbound.request
        if request.state is RequestState.DRAINING:
            self._desk.settle(request)
        elif inbound.state is DestinationState.READY:
            self._routing.over(request)
            self._desk.arrived(request)
        else:
            self._blame(inbound)
            LOG.warning("transfer %d from %s: %s %s", inbound.number, inbound.peer, inbound.state.value, inbound.why)
            self._desk.returned(request, self._desk.now())
        self._part(peer)

    def _part(self, peer: Peer) -> None:
        """Let a leaving peer go once nothing that was asked of it is open."""
        if peer.state is PeerState.LEAVING and not self._open_with(peer):
            self._peers.farewell(peer)

    def _open_with(self, peer: Peer) -> list[Inbound]:
        return [inbound for inbound in self._live.values() if inbound.peer == peer.name]

    def _blame(self, inbound: Inbound) -> None:
        """A hint to come back later is no failure of the request: it waits in this engine's queue."""
        if inbound.refused:
            self._routing.turned_down(inbound.request, inbound.peer, inbound.why)
        elif not inbound.hinted:
            self._routing.failed(inbound.request, inbound.peer, inbound.why)

    def _late(self, inbound: Inbound, now: float) -> None:
        """A deadline passed: give the transfer up; a peer that does not even drain is lost."""
        peer = self._peers[inbound.peer]
        if inbound.state is DestinationState.CANCELLING:
            self._lose(peer, f"it did not drain transfer {inbound.number}")
            return
        inbound.why = f"no answer within {now - inbound.asked_at:.1f} s"
        peer.busy_until = now + self._settings.lost_after_s
        self._give_up(inbound, DestinationEvent.TIMEOUT)

    def _give_up(self, inbound: Inbound, event: DestinationEvent) -> None:
        if inbound.state is not DestinationState.CANCELLING:
            inbound.deadline = self._desk.now() + self._settings.lost_after_s
            self._move(inbound, event)
            peer = self._peers[inbound.peer]
            number, generation = inbound.number, inbound.generation
            cancel = Cancel(
                incarnation=peer.incarnation, greeting=peer.greeting, transfer=number, generation=generation
            )
            if not self._link.send(inbound.peer, cancel):
                self._lose(peer, "the control connection is down")

    def _lose(self, peer: Peer, why: str) -> None:
        """Fence first, then end its transfers: their pages are reusable from here on."""
        self._peers.fence(peer, why)
        for inbound in self._open_with(peer):
            inbound.why = inbound.why or why
            self._failed += 1
            self._move(inbound, DestinationEvent.PEER_LOST)

    def ended(self, request: Request) -> None:
        self._routing.over(request)
        inbound = self._by_request.get(request)
        if inbound is not None:
            self._give_up(inbound, DestinationEvent.CANCEL)

    def holds(self, request: Request) -> bool:
        return request in self._by_request

    # --- state ---

    def gauges(self) -> dict[str, float]:
        states = [inbound.state for inbound in self._live.values()]
        return {
            "num_decode_prealloc_queue_reqs": states.count(DestinationState.ASKED),
            "num_decode_transfer_queue_reqs": len(states),
            "num_transfer_slots_used": self._slots.used,
            "num_usable_prefill_engines": len(self._peers.usable(self._desk.now())),
            **self._observed.gauges(),
        }

    def counters(self) -> dict[str, float]:
        return {
            "num_transfer_failed_reqs_total": self._failed,
            **self._link.counters(),
            **self._observed.counters(),
            **self._messenger.counters(),
        }

    def samples_since(self) -> dict[str, tuple[float, ...]]:
        return self._observed.take()

    def info(self) -> dict[str, str]:
        peers = {f"prefill {peer.name}": peer.status() for peer in self._peers.all()}
        return {"fabric_provider": self._messenger.provider, **peers}

    def close(self) -> None:
        for peer in self._peers.all():
            if peer.state in ACQUAINTED and not self._open_with(peer):
                self._peers.farewell(peer)
        self._link.close()
        self._messenger.close()
