"""Reasoning first, tool calls in what is left; and calls alone."""

from sglang.srt.entrypoints.parsers.base import Event, Parser, Text


class ChainedParser:
    """A Parser: the text that the first leaves goes through the second."""

    def __init__(self, first: Parser, second: Parser) -> None:
        self._first = first
        self._second = second

    def push(self, text: str) -> list[Event]:
        return self._through(self._first.push(text))

    def finish(self) -> list[Event]:
        return self._through(self._first.finish()) + self._second.finish()

    def _through(self, events: list[Event]) -> list[Event]:
        found: list[Event] = []
        for event in events:
            found += self._second.push(event.text) if isinstance(event, Text) else [event]
        return found


class CallsOnly:
    """A Parser of an output whose grammar allows nothing but calls: one cut off before its name is known is no text."""

    def __init__(self, calls: Parser) -> None:
        self._calls = calls

    def push(self, text: str) -> list[Event]:
        return self._without_text(self._calls.push(text))

    def finish(self) -> list[Event]:
        return self._without_text(self._calls.finish())

    @staticmethod
    def _without_text(events: list[Event]) -> list[Event]:
        return [event for event in events if not isinstance(event, Text)]
