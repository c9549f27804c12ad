"""The control plane as a role sees it."""

from typing import Generic, Protocol, TypeVar

In = TypeVar("In")
Out = TypeVar("Out", contravariant=True)


class PeerLink(Protocol, Generic[In, Out]):
    """Messages to and from named peers. A peer's name is its engine id."""

    def send(self, peer: str, message: Out) -> bool:
        """Queue a message without blocking; False where the peer is not connected, and the message is gone."""
        ...

    def poll(self) -> list[tuple[str, In]]:
        """Every (peer, message) that has arrived, in each peer's order."""
        ...

    def counters(self) -> dict[str, float]:
        """Totals of what was dropped: frames that could not be decoded, connections that were not let in."""
        ...

    def close(self) -> None:
        """Hang up; idempotent."""
        ...


class DialledLink(PeerLink[In, Out], Protocol[In, Out]):
    """A link whose peers were dialled, and are dialled again wherever a connection ends."""

    def hung_up(self) -> list[str]:
        """Peers, new since the last call, whose connection ended and who did not take the next one.

        What they had said before has been handed out by poll().
        """
        ...
