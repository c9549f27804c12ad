"""The prefill engines of a decode engine: greeting, heartbeats, loss."""

import logging
from dataclasses import dataclass

from sglang.srt.core.layout import ShardLayout
from sglang.srt.core.ports import KVMessenger, RemoteRegion
from sglang.srt.disaggregation.handoff.acquaintance import ACQUAINTED, PEER_TABLE, PeerEvent, PeerState
from sglang.srt.disaggregation.handshake import reply_problem
from sglang.srt.disaggregation.roles.link import PeerLink
from sglang.srt.disaggregation.roles.settings import RoleSettings
from sglang.srt.errors import EngineError
from sglang.srt.messages.wire import (
    WIRE_VERSION,
    Farewell,
    Heartbeat,
    Hello,
    HelloReply,
    RegionDescriptor,
    ToDecode,
    ToPrefill,
)

LOG = logging.getLogger(__name__)


LIFE_MASK = (1 << 24) - 1
"""Bits of the incarnation that lead every number: two lives share them once in 16 million restarts."""


def first_number(incarnation: int) -> int:
    """Where a life of a decode engine starts to count: a message of another life must never fit by its number."""
    return (incarnation & LIFE_MASK) << 32


@dataclass(slots=True, eq=False)
class Peer:
    """One prefill engine."""

    name: str
    state: PeerState = PeerState.GREETING
    incarnation: int = 0
    layout: ShardLayout | None = None
    regions: tuple[RemoteRegion, ...] = ()
    """What it was granted; empty while it holds no key."""
    heard_at: float = float("-inf")
    next_send: float = 0.0
    refusal: str = ""
    busy_until: float = 0.0
    """It rejected an ask or did not answer one; others are asked until then."""
    load: int = 0
    """Tokens it has been asked for and has not delivered."""
    sequence: int = 0
    greeting: int = 0
    """Number of its newest grant."""

    def on(self, event: PeerEvent) -> None:
        """Move along the table."""
        self.state = PEER_TABLE.next(self.state, event)

    def status(self) -> str:
        """One phrase for an error message."""
        if self.state is PeerState.REFUSED:
            return f"{self.name} does not fit ({self.refusal})"
        if self.state is PeerState.GREETING:
            return f"{self.name} does not answer"
        return f"{self.name} is {self.state.value}"


class Peers:
    """Greets every configured prefill engine and keeps the verdict current."""

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        link: PeerLink[ToDecode, ToPrefill],
        messenger: KVMessenger,
        layout: ShardLayout,
        incarnation: int,
        settings: RoleSettings,
    ) -> None:
        self._peers = {name: Peer(name, greeting=first_number(incarnation)) for name in names}
        self._link = link
        self._messenger = messenger
        self._layout = layout
        self._incarnation = incarnation
        self._settings = settings

    def __getitem__(self, name: str) -> Peer:
        return self._peers[name]

    def all(self) -> list[Peer]:
        """Every configured peer."""
        return list(self._peers.values())

    def usable(self, now: float) -> list[Peer]:
        """Those that may be asked now, least loaded first."""
        fit = [p for p in self._peers.values() if p.state is PeerState.USABLE and p.busy_until <= now]
        return sorted(fit, key=lambda peer: peer.load)

    def tick(self, now: float) -> list[Peer]:
        """Send what is due; returns peers that have been silent for too long."""
        silent = []
        for peer in self._peers.values():
            if peer.state in ACQUAINTED and now - peer.heard_at > self._settings.lost_after_s:
                silent.append(peer)
            elif now >= peer.next_send:
                self._send_due(peer, now)
        return silent

    def deadline(self) -> float:
        """When tick() has something to do."""
        return min((peer.next_send for peer in self._peers.values()), default=float("inf"))

    def _send_due(self, peer: Peer, now: float) -> None:
        peer.next_send = now + self._settings.heartbeat_s
        if peer.state in ACQUAINTED:
            peer.sequence += 1
            self._link.send(
                peer.name, Heartbeat(incarnation=self._incarnation, greeting=peer.greeting, sequence=peer.sequence)
            )
        else:
            self._greet(peer)

    def _greet(self, peer: Peer) -> None:
        if not peer.regions:
            peer.regions = self._messenger.grant(peer.name)
            peer.greeting += 1
        self._link.send(
            peer.name,
            Hello(
                version=WIRE_VERSION,
                incarnation=self._incarnation,
                greeting=peer.greeting,
                layout=self._layout,
                provider=self._messenger.provider,
                fabric_address=self._messenger.address,
                regions=tuple(
                    RegionDescriptor(rank=r.rank, base=r.base, key=r.key, nbytes=r.nbytes) for r in peer.regions
                ),
            ),
        )

    def replied(self, peer: Peer, reply: HelloReply, now: float) -> None:
        """An answer to a hello; one to a hello of the past says nothing about the key that the peer holds now."""
        current = reply.peer_incarnation == self._incarnation and reply.greeting == peer.greeting and peer.regions
        if not current or peer.state in ACQUAINTED:
            return
        # "Here" and "there" in a reply are seen from the prefill engine.
        refusal = f"it says: {reply.refusal}" if reply.refusal else ""
        refusal = refusal or reply_problem(reply, layout=self._layout, provider=self._messenger.provider)
        refusal = refusal or self._locate(peer, reply)
        if refusal:
            if peer.refusal != refusal:
                LOG.error("prefill engine %s does not fit: %s", peer.name, refusal)
            peer.on(PeerEvent.REFUSED)
            peer.refusal = refusal
            self._take_key(peer)
            return
        LOG.info("prefill engine %s is usable", peer.name)
        peer.on(PeerEvent.ACCEPTED)
        peer.refusal, peer.busy_until = "", 0.0
        peer.incarnation, peer.layout, peer.heard_at = reply.incarnation, reply.layout, now

    def leaving(self, peer: Peer, incarnation: int) -> None:
        """It says that it leaves; nothing more is asked of that incarnation."""
        if incarnation != peer.incarnation:
            return
        if peer.state is PeerState.USABLE:
            LOG.info("prefill engine %s is leaving", peer.name)
        peer.on(PeerEvent.LEAVING)

    def farewell(self, peer: Peer) -> None:
        """Let a peer go of which nothing is asked; it asks again where this is lost."""
        self._link.send(peer.name, Farewell(incarnation=peer.incarnation, greeting=peer.greeting))

    def _locate(self, peer: Peer, reply: HelloReply) -> str:
        """Why the address in a reply cannot be used; empty where it can."""
        try:
            self._messenger.locate(peer.name, reply.fabric_address)
        except EngineError as error:
            return str(error)
        return ""

    def fence(self, peer: Peer, why: str) -> None:
        """Take a peer's memory key away; when this returns, nothing of it can land. Greets it anew from now on."""
        if peer.state is PeerState.LEAVING:
            LOG.info("prefill engine %s has left", peer.name)
        else:
            LOG.warning("prefill engine %s is lost: %s", peer.name, why)
        self._take_key(peer)
        peer.on(PeerEvent.LOST)
        peer.load, peer.next_send = 0, 0.0

    def _take_key(self, peer: Peer) -> None:
        self._messenger.revoke(peer.name)
        peer.regions = ()
