"""One state of two engines, one page and the channel between them, as a value."""

from dataclasses import dataclass, replace

from sglang.srt.disaggregation.handoff.states import DestinationState, SourceState

LIFE = 100
"""Transfer numbers of a life start at this times the life."""

Message = tuple[object, ...]


class Violation(Exception):
    """A property does not hold; the message says which."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How often each fault may strike."""

    loss: int = 1
    repeat: int = 1
    crash_p: int = 1
    crash_d: int = 1
    suspicion: int = 1
    """A peer is given up although it lives: a pause that was too long."""
    write_error: int = 1
    leave: int = 1
    """The prefill engine is told to end, and is started again once it has."""


@dataclass(frozen=True, slots=True)
class Source:
    """A transfer on the prefill engine."""

    number: int
    greeting: tuple[int, int]
    """(life, greeting) of the decode engine: the memory key that its writes carry."""
    state: SourceState = SourceState.QUEUED
    posted: int = 0
    flying: int = 0


@dataclass(frozen=True, slots=True)
class World:
    """One state of everything."""

    budget: Budget
    # Decode engine
    d_life: int = 0
    greeting: int = 0
    granted: bool = False
    peer: int | None = None
    """Incarnation of the prefill engine, once it is usable."""
    warned: bool = False
    """That incarnation has said that it leaves."""
    number: int = -1
    """The transfer that owns the page; -1: nobody."""
    state: DestinationState = DestinationState.DRAINED
    counted: int = 0
    asked: int = 0
    served: int = 0
    # Prefill engine
    p_life: int = 0
    guest: bool = False
    leaving: bool = False
    parted: bool = False
    """The guest has said farewell."""
    known: tuple[tuple[int, int], ...] = ()
    """(life, newest greeting) of the decode engine's lives, the current one last."""
    seen: frozenset[int] = frozenset()
    sources: tuple[Source, ...] = ()
    ghosts: tuple[tuple[int, tuple[int, int]], ...] = ()
    """Writes (number, key) in flight whose sender has crashed."""
    # Channel
    messages: tuple[Message, ...] = ()

    @property
    def key(self) -> tuple[int, int]:
        return self.d_life, self.greeting

    @property
    def settled(self) -> bool:
        """Nothing is owned, posted or in flight."""
        return self.number < 0 and not self.sources and not self.ghosts

    @property
    def acquainted(self) -> bool:
        """Both agree that they may work together."""
        return self.peer == self.p_life and self.guest and self.known[-1] == self.key and self.granted

    def send(self, *messages: Message) -> "World":
        """With more in the channel; one copy of each is enough, as each may be repeated."""
        return replace(self, messages=tuple(sorted({*self.messages, *messages}, key=repr)))
