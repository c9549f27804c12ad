"""A two-ended, ordered, message-framed connection between two processes or threads of one engine."""

from typing import Generic, Protocol, TypeVar

In = TypeVar("In")
Out = TypeVar("Out", contravariant=True)


class Channel(Protocol, Generic[In, Out]):
    """One end of a connection; `check_channel` in test/conformance holds every implementation to this."""

    def send(self, message: Out) -> None:
        """Queue a message. Never blocks; raises EngineError when the queue's bound is reached (the other end is
        stuck).
        """
        ...

    def poll(self) -> list[In]:
        """Every message that has arrived, in order, without blocking. A malformed frame is counted and dropped."""
        ...

    def close(self) -> None:
        """Give up the connection; idempotent."""
        ...
