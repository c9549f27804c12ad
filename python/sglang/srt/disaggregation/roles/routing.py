"""Where a decode engine's next request gets its KV: which prefill engine, itself, later, or nowhere."""

from dataclasses import dataclass, field

from sglang.srt.disaggregation.handoff.acquaintance import PeerState
from sglang.srt.disaggregation.roles.peers import Peer, Peers
from sglang.srt.disaggregation.roles.settings import RoleSettings
from sglang.srt.managers.request import Request
from sglang.srt.managers.role import Route


@dataclass(slots=True)
class Trouble:
    """What a request has met on its way to a prefill engine."""

    stranded_since: float | None = None
    """Since when no prefill engine could be asked at all."""
    failed_on: dict[str, int] = field(default_factory=dict)
    """Tries by peer; the one with the fewest is asked next."""
    refused_by: set[str] = field(default_factory=set)
    """Peers that said never to be asked for this request again."""
    why: str = ""


class Routing:
    """Keeps every request's history until it is over."""

    def __init__(self, peers: Peers, settings: RoleSettings) -> None:
        self._peers = peers
        self._settings = settings
        self._troubles: dict[Request, Trouble] = {}
        self._leaving = False

    def leave(self) -> None:
        """This engine is told to end: it hopes for no prefill engine that is not there."""
        self._leaving = True

    def choose(self, request: Request, now: float) -> Peer | None:
        """The prefill engine to ask now."""
        trouble = self._troubles.get(request, Trouble())
        fit = [peer for peer in self._peers.usable(now) if peer.name not in trouble.refused_by]
        return min(fit, key=lambda peer: (trouble.failed_on.get(peer.name, 0), peer.load), default=None)

    def route(self, request: Request, now: float, slot_free: bool) -> Route:
        """For a request that lacks more KV than this engine computes itself."""
        spent = request.attempts >= self._settings.max_attempts
        if not spent and slot_free and self.choose(request, now) is not None:
            return Route.REMOTE
        if self._settings.fallback_local:
            return Route.LOCAL
        return Route.WAIT if not spent and self._hope(request, now) else Route.REFUSED

    def _hope(self, request: Request, now: float) -> bool:
        """Whether a prefill engine may become usable in time: one that has left or died is usually started again.

        One that only has no room now is waited for; --max-queued-requests bounds how many wait.
        """
        trouble = self._troubles.setdefault(request, Trouble())
        possible = [peer for peer in self._peers.all() if peer.name not in trouble.refused_by]
        possible = [peer for peer in possible if peer.state is not PeerState.REFUSED]
        if any(peer.state is PeerState.USABLE for peer in possible):
            trouble.stranded_since = None
            return True
        if trouble.stranded_since is None:
            trouble.stranded_since = now
        patience = 0.0 if self._leaving else self._settings.wait_s
        return bool(possible) and now - trouble.stranded_since < patience

    def failed(self, request: Request, peer: str, why: str) -> None:
        """A try ended without KV."""
        trouble = self._troubles.setdefault(request, Trouble())
        trouble.failed_on[peer] = trouble.failed_on.get(peer, 0) + 1
        trouble.stranded_since = None
        trouble.why = why
        request.attempts += 1

    def turned_down(self, request: Request, peer: str, why: str) -> None:
        """A peer will never serve this request."""
        self.failed(request, peer, why)
        self._troubles[request].refused_by.add(peer)

    def over(self, request: Request) -> None:
        """The request is over, or has its KV."""
        self._troubles.pop(request, None)

    def epitaph(self, request: Request) -> str:
        """Why a request cannot be served, for its client."""
        trouble = self._troubles.get(request, Trouble())
        status = "; ".join(peer.status() for peer in self._peers.all())
        tried = f" after {request.attempts} attempts ({trouble.why})" if request.attempts else ""
        leaving = "this engine is shutting down and has " if self._leaving else ""
        return f"{leaving}no usable prefill engine{tried}: {status}"
