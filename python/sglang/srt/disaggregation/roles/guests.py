"""The decode engines of a prefill engine: who may be written to, and whether they still live."""

import logging
from dataclasses import dataclass

from sglang.srt.core.layout import ShardLayout
from sglang.srt.core.ports import KVMessenger, RemoteRegion
from sglang.srt.disaggregation.handoff.acquaintance import GUEST_TABLE, GuestEvent, GuestState
from sglang.srt.disaggregation.handoff.replay import Greeting, Life, Lives
from sglang.srt.disaggregation.handshake import refusal
from sglang.srt.disaggregation.roles.link import PeerLink
from sglang.srt.disaggregation.roles.settings import RoleSettings
from sglang.srt.errors import EngineError
from sglang.srt.messages.wire import (
    WIRE_VERSION,
    Farewell,
    Heartbeat,
    Hello,
    HelloReply,
    HelloWanted,
    Leaving,
    ToDecode,
    ToPrefill,
)

LOG = logging.getLogger(__name__)

REMEMBERED = 1024
"""Names whose last life is remembered; beyond that the oldest is forgotten."""

SAID = 1000
"""Characters of a refusal that are sent."""


@dataclass(slots=True, eq=False)
class Guest:
    """One decode engine that has shaken hands."""

    name: str
    layout: ShardLayout
    heard_at: float
    life: Life
    state: GuestState = GuestState.WELCOME
    sequence: int = 0

    def on(self, event: GuestEvent) -> None:
        """Move along the table."""
        self.state = GUEST_TABLE.next(self.state, event)


class Guests:
    """Accepts hellos, answers heartbeats, notices silence."""

    def __init__(
        self,
        *,
        link: PeerLink[ToPrefill, ToDecode],
        messenger: KVMessenger,
        layout: ShardLayout,
        incarnation: int,
        settings: RoleSettings,
    ) -> None:
        self._guests: dict[str, Guest] = {}
        self._lives: dict[str, Lives] = {}
        self._link = link
        self._messenger = messenger
        self._layout = layout
        self._incarnation = incarnation
        self._settings = settings
        self._next_beat = 0.0
        self._leaving = False
        self._stays_until = 0.0

    def __len__(self) -> int:
        return len(self._guests)

    def get(self, name: str) -> Guest | None:
        """The guest of that name, where it has shaken hands and lives."""
        return self._guests.get(name)

    def cancelled(self, name: str, number: int) -> None:
        """A transfer that is not known here was cancelled; also where its sender has been dropped meanwhile."""
        lives = self._lives.get(name)
        if lives is not None:
            lives.cancelled(number)

    def judge(self, name: str, hello: Hello) -> Greeting:
        """What a hello means; only a NEW one ends what ran for an earlier hello of the same name."""
        lives = self._lives.get(name)
        if lives is None:
            return Greeting.NEW
        return lives.judge(hello.incarnation, hello.greeting, present=name in self._guests)

    def welcome(self, name: str, hello: Hello, now: float) -> None:
        """Answer a new hello. The caller has already dropped whatever ran for an earlier one of the same name."""
        why = refusal(hello, layout=self._layout, provider=self._messenger.provider) or self._connect(name, hello)
        if why:
            LOG.error("decode engine %s does not fit: %s", name, why)
        else:
            self._guests[name] = Guest(name, hello.layout, now, self._remember(name, hello))
            LOG.info("decode engine %s may be written to", name)
        self._reply(name, hello, why)

    def repeat(self, name: str, hello: Hello, now: float) -> None:
        """Answer a hello again."""
        self._guests[name].heard_at = now
        self._reply(name, hello, "")

    def _connect(self, name: str, hello: Hello) -> str:
        regions = [RemoteRegion(rank=r.rank, base=r.base, key=r.key, nbytes=r.nbytes) for r in hello.regions]
        try:
            self._messenger.connect(name, hello.fabric_address, regions, hello.layout.num_pages)
        except EngineError as error:
            return str(error)
        return ""

    def _remember(self, name: str, hello: Hello) -> Life:
        lives = self._lives.pop(name) if name in self._lives else Lives()
        self._lives[name] = lives
        while len(self._lives) > REMEMBERED:
            del self._lives[next(iter(self._lives))]
        return lives.begin(hello.incarnation, hello.greeting)

    def _reply(self, name: str, hello: Hello, why: str) -> None:
        self._link.send(
            name,
            HelloReply(
                version=WIRE_VERSION,
                incarnation=self._incarnation,
                peer_incarnation=hello.incarnation,
                greeting=hello.greeting,
                refusal=why[:SAID],
                fabric_address=self._messenger.address,
                layout=self._layout,
                provider=self._messenger.provider,
            ),
        )
        if self._leaving:
            self._link.send(name, Leaving(incarnation=self._incarnation))

    def want(self, name: str, greeting: int) -> None:
        """Ask for a hello, in answer to a message that carried `greeting` and made no sense here."""
        self._link.send(name, HelloWanted(incarnation=self._incarnation, greeting=greeting))

    def beat(self, name: str, heartbeat: Heartbeat, now: float) -> None:
        """A heartbeat came in; one of a stranger is asked to say hello."""
        guest = self._guests.get(name)
        if guest is None or guest.life.incarnation != heartbeat.incarnation:
            self.want(name, heartbeat.greeting)
            return
        guest.heard_at = now

    def leave(self, now: float) -> None:
        """Tell everyone, now and later, that no more asks are taken."""
        self._leaving = True
        self.stay(now)
        for name in self._guests:
            self._link.send(name, Leaving(incarnation=self._incarnation))

    def stay(self, now: float) -> None:
        """A transfer ended: its guest has this long to say farewell."""
        self._stays_until = now + self._settings.lost_after_s

    def parted(self, name: str, farewell: Farewell) -> bool:
        """A farewell came in; whether it was meant for this life of both."""
        guest = self._guests.get(name)
        if guest is None or (farewell.incarnation, farewell.greeting) != (self._incarnation, guest.life.greeting):
            return False
        guest.on(GuestEvent.FAREWELL)
        return True

    def departed(self, now: float) -> bool:
        """Whether nobody is left who may ask or wait, or who answers at all."""
        return now >= self._stays_until or all(g.state is GuestState.PARTED for g in self._guests.values())

    def tick(self, now: float) -> list[Guest]:
        """Send heartbeats when due; returns guests that have been silent for too long."""
        if now >= self._next_beat:
            self._next_beat = now + self._settings.heartbeat_s
            for guest in self._guests.values():
                guest.sequence += 1
                self._link.send(guest.name, Heartbeat(incarnation=self._incarnation, sequence=guest.sequence))
                if self._leaving and guest.state is GuestState.WELCOME:
                    self._link.send(guest.name, Leaving(incarnation=self._incarnation))
        return [g for g in self._guests.values() if now - g.heard_at > self._settings.lost_after_s]

    def deadline(self) -> float:
        """When tick() has something to do."""
        return self._next_beat if self._guests else float("inf")

    def drop(self, name: str) -> None:
        """Forget a guest and stop writing to it. A no-op for a stranger."""
        guest = self._guests.pop(name, None)
        if guest is not None:
            guest.on(GuestEvent.LOST)
            self._messenger.disconnect(name)
