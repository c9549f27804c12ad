"""What a prefill engine makes of hellos and asks that may come late, twice or out of order. Pure decisions.

An ask names pages. Once its transfer is over they belong to someone else, so an ask must be obeyed at most once, never
after its cancel, and only under the grant that it was made under.
"""

from dataclasses import dataclass, field
from enum import Enum

KEPT = 8192
"""Numbers remembered a decode engine: twice the counting slots that it may have open at a time."""


class ReplayWindow:
    """Transfer numbers of one life of a decode engine, which hands them out in ascending order and never twice."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._floor = -1
        self._seen: set[int] = set()

    def take(self, number: int) -> bool:
        """Whether the number is new; it is not from here on. Numbers older than the window count as seen."""
        if number <= self._floor or number in self._seen:
            return False
        self._seen.add(number)
        if len(self._seen) > self._kept:
            oldest = sorted(self._seen)[: self._kept // 2]
            self._floor = oldest[-1]
            self._seen.difference_update(oldest)
        return True


@dataclass(slots=True, eq=False)
class Life:
    """What is remembered of a decode engine's incarnation, also while it is away."""

    incarnation: int
    greeting: int
    """Of its newest hello."""
    numbers: ReplayWindow = field(default_factory=ReplayWindow)


class Greeting(Enum):
    """What a hello means."""

    NEW = "new"
    REPEATED = "repeated"
    """The answer was lost; nothing has changed."""
    STALE = "stale"
    """It speaks of a memory key that has been revoked since, or comes from an earlier life."""


KEPT_LIVES = 4
"""Incarnations remembered a name. One that is forgotten could be taken for new, and would be greeted in vain."""


class Lives:
    """The incarnations of one decode engine's name, as far as hellos have told. One of them is current."""

    def __init__(self) -> None:
        self._lives: dict[int, Life] = {}
        self.current: Life | None = None

    def judge(self, incarnation: int, greeting: int, *, present: bool) -> Greeting:
        """`present`: the current life has not been dropped since it shook hands.

        A life that was superseded counts as alive again only with a newer greeting: the newcomer may have been a hello
        that an even earlier life had sent.
        """
        life = self._lives.get(incarnation)
        if life is None or life.greeting < greeting:
            return Greeting.NEW
        if greeting < life.greeting or life is not self.current:
            return Greeting.STALE
        return Greeting.REPEATED if present else Greeting.NEW

    def begin(self, incarnation: int, greeting: int) -> Life:
        """A NEW hello was accepted."""
        life = self._lives.pop(incarnation, None) or Life(incarnation, greeting)
        life.greeting = greeting
        self._lives[incarnation] = self.current = life
        while len(self._lives) > KEPT_LIVES:
            del self._lives[next(iter(self._lives))]
        return life

    def cancelled(self, number: int) -> None:
        """Should the ask of a cancelled transfer still be on its way, it must find its number taken.

        In every life's window: no two lives share a number, and the cancel may come while another life is current.
        """
        for life in self._lives.values():
            life.numbers.take(number)


class Fate(Enum):
    """What becomes of an ask."""

    OPEN = "open"
    UNGREETED = "ungreeted"
    """Its sender does not know this engine, or is not known here: a hello is wanted."""
    STALE = "stale"
    """Made under another grant, or its number was asked for or cancelled before: dropped.

    A copy is not even rejected: the first may have been served already, whose last writes the decode engine has yet to
    see, and it would take the rejection for the answer to that.
    """


def judge_ask(life: Life | None, transfer: int, *, greeting: int, addressee: int, own: int, copy: bool) -> Fate:
    """`life`: of a sender that has shaken hands; `addressee` and `own`: incarnation that was asked, and of this engine;
    `copy`: the same try of the same transfer is being served. Takes the number.
    """
    if life is None or addressee != own:
        return Fate.UNGREETED
    if greeting != life.greeting or copy:
        return Fate.STALE
    return Fate.OPEN if life.numbers.take(transfer) else Fate.STALE
