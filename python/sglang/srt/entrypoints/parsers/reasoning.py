"""Reasoning apart from the answer: <think> ... </think>."""

from sglang.srt.entrypoints.parsers.base import Event, Reasoning, Text, possible_start

OPEN, CLOSE = "<think>", "</think>"


class ThinkParser:
    """Splits at the tags. White space around the reasoning belongs to neither part.

    An answer that begins with anything but `<think>` has no reasoning, unless it was begun in the prompt.
    """

    def __init__(self, *, inside: bool) -> None:
        """`inside`: the prompt has opened the reasoning already; a model that opens it once more is forgiven."""
        self._inside = inside
        self._buffer = ""
        self._opened = False
        """Whether it is decided what the text begins with."""
        self._closed = False
        self._fresh = False
        """Nothing of the answer behind the reasoning was emitted yet: its leading white space is dropped."""

    def push(self, text: str) -> list[Event]:
        self._buffer += text
        events: list[Event] = []
        if not self._opened:
            self._open()
        if self._opened and self._inside and not self._closed:
            events += self._reason()
        if self._closed:
            events += self._answer()
        return events

    def finish(self) -> list[Event]:
        buffer, self._buffer = self._buffer, ""
        if self._closed or not (self._opened or self._inside):
            text = buffer.lstrip() if self._fresh else buffer
            return [Text(text)] if text else []
        rest = buffer.rstrip() if self._opened else buffer.strip()
        return [Reasoning(rest)] if rest else []

    def _open(self) -> None:
        """Decide between a reasoning and an answer as soon as the text allows."""
        stripped = self._buffer.lstrip()
        if stripped.startswith(OPEN):
            self._inside = True
            stripped = stripped[len(OPEN) :].lstrip()
            # White space behind the tag may still come; the tag itself must not be looked for again.
            self._buffer = stripped if stripped else OPEN
            self._opened = bool(stripped)
        elif not OPEN.startswith(stripped):
            self._opened = True
            if self._inside:
                self._buffer = stripped
            else:
                self._closed = True

    def _reason(self) -> list[Event]:
        head, tag, tail = self._buffer.partition(CLOSE)
        if tag:
            self._closed = self._fresh = True
            self._buffer = tail
            sure = head.rstrip()
        else:
            held = possible_start(self._buffer, (CLOSE,))
            sure = self._buffer[: len(self._buffer) - held].rstrip()
            self._buffer = self._buffer[len(sure) :]
        return [Reasoning(sure)] if sure else []

    def _answer(self) -> list[Event]:
        text = self._buffer.lstrip() if self._fresh else self._buffer
        self._buffer = ""
        self._fresh = self._fresh and not text
        return [Text(text)] if text else []
