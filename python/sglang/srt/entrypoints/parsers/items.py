"""A parser's events as the items of an answer: stretches of reasoning, of text, and calls, one after the other.

Chat tells events apart by their kind alone. OpenAI's responses and Anthropic's messages open an item, grow it and close
it, and show finished ones in a list.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sglang.srt.entrypoints.parsers.base import CallArguments, CallStart, Event, Reasoning, Text

ItemKind = Literal["reasoning", "text", "call"]


@dataclass(slots=True)
class Item:
    """One item so far."""

    number: int
    """Its place in the answer, from 0."""
    kind: ItemKind
    name: str = ""
    """The tool that a call calls."""
    text: str = ""
    """Reasoning, text, or a call's arguments (JSON once it is closed)."""
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """An item begins; it is empty."""

    item: Item


@dataclass(frozen=True, slots=True)
class Grown:
    """An item gained `piece`."""

    item: Item
    piece: str


@dataclass(frozen=True, slots=True)
class Closed:
    """An item is whole."""

    item: Item


ItemStep = Opened | Grown | Closed


class ItemList:
    """The items of one output."""

    def __init__(self) -> None:
        self.items: list[Item] = []

    def push(self, events: Sequence[Event]) -> list[ItemStep]:
        """What `events` do to the items."""
        steps: list[ItemStep] = []
        for event in events:
            match event:
                case CallStart(_, name):
                    self._open("call", steps, name)
                case CallArguments(_, fragment):
                    self._grow(self.items[-1], fragment, steps)
                case Text(text) if text:
                    self._continue("text", text, steps)
                case Reasoning(text) if text:
                    self._continue("reasoning", text, steps)
        return steps

    def finish(self) -> list[ItemStep]:
        """No event follows. An answer that says nothing is an empty text."""
        steps: list[ItemStep] = []
        if not self.items:
            self._open("text", steps)
        self._close(steps)
        return steps

    @property
    def called(self) -> bool:
        """Whether there is a call."""
        return any(item.kind == "call" for item in self.items)

    def _continue(self, kind: ItemKind, text: str, steps: list[ItemStep]) -> None:
        if not self.items or self.items[-1].kind != kind:
            self._open(kind, steps)
        self._grow(self.items[-1], text, steps)

    def _open(self, kind: ItemKind, steps: list[ItemStep], name: str = "") -> None:
        self._close(steps)
        self.items.append(Item(len(self.items), kind, name))
        steps.append(Opened(self.items[-1]))

    def _grow(self, item: Item, piece: str, steps: list[ItemStep]) -> None:
        item.text += piece
        steps.append(Grown(item, piece))

    def _close(self, steps: list[ItemStep]) -> None:
        if self.items and not self.items[-1].closed:
            self.items[-1].closed = True
            steps.append(Closed(self.items[-1]))
