"""What parsers of tool calls share: text outside of calls, numbering, and the formats' constraints."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from sglang.srt.entrypoints.parsers.base import CallArguments, CallStart, Event, Text, first_of, possible_start


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model may call."""

    name: str
    parameters: dict[str, Any]
    """JSON schema of its arguments."""
    strict: bool = False
    """Calls keep to the schema even where none is forced."""


class CallBody(Protocol):
    """Reads one call from behind its marker."""

    @property
    def ended(self) -> bool:
        """Whether the call is over: text follows."""
        ...

    def push(self, text: str) -> tuple[list[Event], str]:
        """(what is certain, what of `text` lies behind the call: only once it has ended)."""
        ...

    def finish(self) -> list[Event]:
        """The text ends within the call."""
        ...


class MarkedCalls:
    """A Parser: calls that begin with a marker, in text. White space around calls belongs to nobody."""

    def __init__(self, markers: Sequence[str], body: Callable[[int, str], CallBody]) -> None:
        """`body(index, marker)` reads the call that `marker` began."""
        self._markers = tuple(markers)
        self._make = body
        self._buffer = ""
        self._call: CallBody | None = None
        self._index = 0
        self._after_call = False
        self._space = ""
        """In front of the marker of the call that is being read."""

    def push(self, text: str) -> list[Event]:
        self._buffer += text
        events: list[Event] = []
        while self._buffer:
            if self._call is None:
                if not self._outside(events):
                    break
            else:
                self._inside(self._call, events)
        return events

    def finish(self) -> list[Event]:
        events: list[Event] = []
        if self._call is not None:
            self._take(self._call.finish(), events)
        else:
            self._emit(self._buffer, events)
        self._buffer = ""
        return events

    def _outside(self, events: list[Event]) -> bool:
        """Text up to the next marker; False where the rest has to wait."""
        position, marker = first_of(self._buffer, self._markers)
        if position >= 0:
            before = self._buffer[:position]
            self._emit(before.rstrip(), events)
            self._space = before[len(before.rstrip()) :]
            self._buffer = self._buffer[position + len(marker) :]
            self._call = self._make(self._index, marker)
            return True
        sure = len(self._buffer) - possible_start(self._buffer, self._markers)
        # White space belongs to a call where one follows.
        sure = len(self._buffer[:sure].rstrip())
        self._emit(self._buffer[:sure], events)
        self._buffer = self._buffer[sure:]
        return False

    def _emit(self, text: str, events: list[Event]) -> None:
        if self._after_call:
            text = text.lstrip()
        if text:
            self._after_call = False
            events.append(Text(text))

    def _inside(self, call: CallBody, events: list[Event]) -> None:
        text, self._buffer = self._buffer, ""
        found, rest = call.push(text)
        self._take(found, events)
        if call.ended:
            self._buffer, self._call = rest, None
            # What turned out to be no call is text, and so is the white space behind it.
            self._after_call = not any(isinstance(event, Text) for event in found)

    def _take(self, found: list[Event], events: list[Event]) -> None:
        """Pass on what a call gave; text that only looked like a call gets back the white space in front of it."""
        for event in found:
            if isinstance(event, Text):
                self._emit(self._space + event.text, events)
            else:
                self._index += isinstance(event, CallStart)
                events.append(event)
            self._space = ""


def start(index: int, name: str, arguments: str = "") -> list[Event]:
    """The events of a call's beginning."""
    events: list[Event] = [CallStart(index, name)]
    return [*events, CallArguments(index, arguments)] if arguments else events


class Dropped:
    """A CallBody of a marker that stands around calls and means nothing itself."""

    ended = True

    def push(self, text: str) -> tuple[list[Event], str]:
        return [], text

    def finish(self) -> list[Event]:
        return []
