"""Incremental parsers of a model's text. However the text is cut into pieces, the joined events are the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Text:
    """Text for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool call begins."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A further piece of a tool call's arguments, which are JSON once joined."""

    index: int
    fragment: str


Event = Text | Reasoning | CallStart | CallArguments


class Parser(Protocol):
    """Text in, events out."""

    def push(self, text: str) -> list[Event]:
        """What is certain after `text`."""
        ...

    def finish(self) -> list[Event]:
        """No text follows: whatever was held back."""
        ...


class PlainText:
    """A parser that finds nothing."""

    def push(self, text: str) -> list[Event]:
        return [Text(text)] if text else []

    def finish(self) -> list[Event]:
        return []


def possible_start(text: str, markers: Sequence[str]) -> int:
    """Length of the longest end of `text` that one of `markers` begins with, whole markers aside."""
    longest = min(len(text), max(map(len, markers)) - 1)
    for length in range(longest, 0, -1):
        if any(len(marker) > length and marker.startswith(text[-length:]) for marker in markers):
            return length
    return 0


def first_of(text: str, markers: Sequence[str]) -> tuple[int, str]:
    """(position, marker) of the earliest marker in `text`, the longest where several begin there; (-1, "") for none."""
    found = [(text.find(marker), -len(marker), marker) for marker in markers if marker in text]
    if not found:
        return -1, ""
    position, _, marker = min(found)
    return position, marker
