"""Calls as JSON objects.

Hermes, Qwen 2.5 and 3: `<tool_call>\\n{"name": "f", "arguments": {...}}\\n</tool_call>`, one after the other.
Llama 3: `{"name": "f", "parameters": {...}}`, with `; ` between several, sometimes behind `<|python_tag|>`.
"""

from sglang.srt.entrypoints.parsers.base import CallArguments, Event, Text
from sglang.srt.entrypoints.parsers.json_scan import CallScanner
from sglang.srt.entrypoints.parsers.tools import CallBody, MarkedCalls, start

HERMES_OPEN, HERMES_CLOSE = "<tool_call>", "</tool_call>"
LLAMA_TAG, LLAMA_SEPARATOR = "<|python_tag|>", ";"


class JsonCall:
    """A CallBody: one object, then `close` where that follows. What is no call is given back as text."""

    def __init__(self, index: int, marker: str, close: str, *, needs_arguments: bool) -> None:
        """`needs_arguments`: an object without them is no call."""
        self._index = index
        self._close = close
        self._needs_arguments = needs_arguments
        self._scanner = CallScanner()
        self._seen = marker
        """Everything, until it is certain to be a call."""
        self._begun = False
        self._tail = ""
        self.ended = False

    def push(self, text: str) -> tuple[list[Event], str]:
        if self._scanner.ended:
            return [], self._closing(text)
        if not self._begun:
            self._seen += text
        rest = self._scanner.push(text)
        events = self._events()
        if not self._begun and (self._scanner.ended or self._scanner.broken):
            self.ended = True
            return [Text(self._seen[: len(self._seen) - len(rest)])], rest
        if self._scanner.broken:
            self.ended = True
            return events, rest
        return events, self._closing(rest) if self._scanner.ended else ""

    def finish(self) -> list[Event]:
        return [] if self._begun else [Text(self._seen)]

    def _events(self) -> list[Event]:
        scanner = self._scanner
        complete = scanner.ended and not self._needs_arguments
        if scanner.name is None or not (self._begun or scanner.has_arguments or complete):
            return []
        fragment = scanner.take_arguments()
        if complete and not scanner.has_arguments:
            fragment = "{}"
        if self._begun:
            return [CallArguments(self._index, fragment)] if fragment else []
        self._begun = True
        return start(self._index, scanner.name, fragment)

    def _closing(self, text: str) -> str:
        """Waits for the closing mark; returns what is behind it, or everything where something else comes."""
        self._tail += text
        stripped = self._tail.lstrip()
        if stripped.startswith(self._close):
            self.ended = True
            return stripped[len(self._close) :]
        if self._close.startswith(stripped):
            return ""
        self.ended = True
        return self._tail


def hermes() -> MarkedCalls:
    """A parser of Hermes's format."""
    return MarkedCalls((HERMES_OPEN,), lambda i, marker: JsonCall(i, marker, HERMES_CLOSE, needs_arguments=False))


def llama3() -> MarkedCalls:
    """A parser of Llama 3's format. JSON that names no call and has no parameters is text."""

    def body(index: int, marker: str) -> CallBody:
        call = JsonCall(index, "" if marker == "{" else marker, LLAMA_SEPARATOR, needs_arguments=True)
        if marker == "{":
            call.push(marker)
        return call

    return MarkedCalls((LLAMA_TAG, "{"), body)
