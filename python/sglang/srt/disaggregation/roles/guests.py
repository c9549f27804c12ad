"""The decode engines of a prefill engine: who may be written to, and whether they still live."""

import logging
from dataclasses import dataclass

from sglang.srt.core.layout import ShardLayout
from sglang.srt.core.ports import KVMessenger, RemoteRegion
from sglang.srt.disaggregation.handshake import refusal
from sglang.srt.disaggregation.roles.link import PeerLink
from sglang.srt.disaggregation.roles.settings import RoleSettings
from sglang.srt.messages.wire import WIRE_VERSION, Heartbeat, Hello, HelloReply, HelloWanted, ToDecode, ToPrefill

LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Guest:
    """One decode engine that has shaken hands."""

    name: str
    incarnation: int
    layout: ShardLayout
    heard_at: float
    sequence: int = 0


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
        self._link = link
        self._messenger = messenger
        self._layout = layout
        self._incarnation = incarnation
        self._settings = settings
        self._next_beat = 0.0

    def __len__(self) -> int:
        return len(self._guests)

    def get(self, name: str) -> Guest | None:
        """The guest of that name, where it has shaken hands and lives."""
        return self._guests.get(name)

    def welcome(self, name: str, hello: Hello, now: float) -> None:
        """Answer a hello. The caller has already dropped whatever ran for an earlier one of the same name."""
        why = refusal(hello, layout=self._layout, provider=self._messenger.provider)
        if why:
            LOG.error("decode engine %s does not fit: %s", name, why)
        else:
            self._messenger.connect(
                name,
                hello.fabric_address,
                [RemoteRegion(rank=r.rank, base=r.base, key=r.key, nbytes=r.nbytes) for r in hello.regions],
                hello.layout.num_pages,
            )
            self._guests[name] = Guest(name, hello.incarnation, hello.layout, now)
            LOG.info("decode engine %s may be written to", name)
        self._link.send(
            name,
            HelloReply(
                version=WIRE_VERSION,
                incarnation=self._incarnation,
                peer_incarnation=hello.incarnation,
                greeting=hello.greeting,
                refusal=why,
                layout=self._layout,
                provider=self._messenger.provider,
            ),
        )

    def beat(self, name: str, heartbeat: Heartbeat, now: float) -> None:
        """A heartbeat came in; one of a stranger is asked to say hello."""
        guest = self._guests.get(name)
        if guest is None or guest.incarnation != heartbeat.incarnation:
            self._link.send(name, HelloWanted(incarnation=self._incarnation))
            return
        guest.heard_at = now

    def tick(self, now: float) -> list[Guest]:
        """Send heartbeats when due; returns guests that have been silent for too long."""
        if now >= self._next_beat:
            self._next_beat = now + self._settings.heartbeat_s
            for guest in self._guests.values():
                guest.sequence += 1
                self._link.send(guest.name, Heartbeat(incarnation=self._incarnation, sequence=guest.sequence))
        return [g for g in self._guests.values() if now - g.heard_at > self._settings.lost_after_s]

    def deadline(self) -> float:
        """When tick() has something to do."""
        return self._next_beat if self._guests else float("inf")

    def drop(self, name: str) -> None:
        """Forget a guest and stop writing to it. A no-op for a stranger."""
        if self._guests.pop(name, None) is not None:
            self._messenger.disconnect(name)
