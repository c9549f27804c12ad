"""DeepSeek's calls, in V3's form (also R1's) and V3.1's; which one it is shows behind the separator.

V3:   <calls><call>function<sep>NAME\\n```json\\n{...}\\n```<end of call>\\n<call>...<end of calls>
V3.1: <calls><call>NAME<sep>{...}<end of call><call>...<end of calls>
"""

from sglang.srt.entrypoints.parsers.base import CallArguments, Event, Text
from sglang.srt.entrypoints.parsers.json_scan import ValueScanner
from sglang.srt.entrypoints.parsers.tools import CallBody, Dropped, MarkedCalls, start

CALLS, CALLS_END = "<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>"
CALL, CALL_END = "<\uff5ctool\u2581call\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>"
SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
FENCE = "```json"


class DeepSeekCall:
    """A CallBody."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._buffer = ""
        self._begun = False
        self._value = ValueScanner()
        self.ended = False

    def push(self, text: str) -> tuple[list[Event], str]:
        self._buffer += text
        events = [] if self._begun else self._header()
        if self._begun and not self._value.ended:
            events += self._arguments()
        if self._value.ended:
            _, mark, rest = self._buffer.partition(CALL_END)
            if mark:
                self.ended = True
                return events, rest
        return events, ""

    def finish(self) -> list[Event]:
        return [] if self._begun else [Text(CALL + self._buffer)]

    def _header(self) -> list[Event]:
        """Everything up to the arguments' first character."""
        kind, separator, rest = self._buffer.partition(SEPARATOR)
        if not separator:
            return []
        if kind.strip() != "function":  # V3.1: the name comes first
            return self._begin(kind.strip(), rest)
        name, line, fence = rest.partition("\n")
        behind = fence.lstrip()
        if not line or not behind or (FENCE.startswith(behind) and behind != FENCE):
            return []
        return self._begin(name.strip(), behind.removeprefix(FENCE))

    def _begin(self, name: str, rest: str) -> list[Event]:
        self._begun, self._buffer = True, rest
        return start(self._index, name)

    def _arguments(self) -> list[Event]:
        if not self._value.begun:
            self._buffer = self._buffer.lstrip()
        length = self._value.push(self._buffer)
        part, self._buffer = self._buffer[:length], self._buffer[length:]
        return [CallArguments(self._index, part)] if part else []


def deepseek() -> MarkedCalls:
    """A parser of both forms."""

    def body(index: int, marker: str) -> CallBody:
        return DeepSeekCall(index) if marker == CALL else Dropped()

    return MarkedCalls((CALLS, CALL, CALLS_END), body)
