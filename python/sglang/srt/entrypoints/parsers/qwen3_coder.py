"""Qwen3-Coder's calls: XML, whose values are made JSON by the tools' schemas.

<tool_call>
<function=NAME>
<parameter=KEY>
VALUE
</parameter>
</function>
</tool_call>
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sglang.srt.entrypoints.parsers.base import CallArguments, Event, Text, first_of
from sglang.srt.entrypoints.parsers.tools import CallBody, Dropped, MarkedCalls, ToolSpec, start

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


class XmlCall:
    """A CallBody. Arguments come parameter by parameter: a value's type is certain at its end."""

    def __init__(self, index: int, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        """`schemas`: properties of each tool."""
        self._index = index
        self._schemas = schemas
        self._buffer = ""
        self._name: str | None = None
        self._key: str | None = None
        self._count = 0
        self.ended = False

    def push(self, text: str) -> tuple[list[Event], str]:
        self._buffer += text
        events: list[Event] = []
        while not self.ended and self._step(events):
            pass
        if not self.ended:
            return events, ""
        rest, self._buffer = self._buffer, ""
        return events, rest

    def finish(self) -> list[Event]:
        return [] if self._name is not None else [Text(FUNCTION + self._buffer)]

    def _step(self, events: list[Event]) -> bool:
        """One mark further; False where more text is needed."""
        if self._name is None:
            name, mark, rest = self._buffer.partition(">")
            if mark:
                self._name, self._buffer = name.strip(), rest
                events += start(self._index, self._name)
            return bool(mark)
        if self._key is not None:
            return self._value(self._key, events)
        position, mark = first_of(self._buffer, (PARAMETER, FUNCTION_END))
        if mark == FUNCTION_END:
            self._buffer = self._buffer[position + len(mark) :]
            self.ended = True
            events.append(CallArguments(self._index, "}" if self._count else "{}"))
        elif mark:
            key, end, rest = self._buffer[position + len(mark) :].partition(">")
            if not end:
                return False
            self._key, self._buffer = key.strip(), rest
        return bool(mark)

    def _value(self, key: str, events: list[Event]) -> bool:
        # Models forget the closing tag at times: whatever comes next ends the value as well.
        position, mark = first_of(self._buffer, (PARAMETER_END, PARAMETER, FUNCTION_END))
        if not mark:
            return False
        text = self._buffer[:position].removeprefix("\n").removesuffix("\n")
        self._buffer = self._buffer[position + (len(mark) if mark == PARAMETER_END else 0) :]
        pair = f"{json.dumps(key, ensure_ascii=False)}: {self._json(key, text)}"
        events.append(CallArguments(self._index, (", " if self._count else "{") + pair))
        self._count += 1
        self._key = None
        return True

    def _json(self, key: str, text: str) -> str:
        schema = self._schemas.get(self._name or "", {}).get(key)
        kinds = _types(schema)
        if kinds and "string" not in kinds:
            value = _literal(text)
            if value is not None:
                return value
        return json.dumps(text, ensure_ascii=False)


def qwen3_coder(tools: Sequence[ToolSpec]) -> MarkedCalls:
    """A parser that knows the tools' types."""
    schemas = {tool.name: _properties(tool.parameters) for tool in tools}

    def body(index: int, marker: str) -> CallBody:
        return XmlCall(index, schemas) if marker == FUNCTION else Dropped()

    return MarkedCalls((OPEN, FUNCTION, CLOSE), body)


def _properties(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = parameters.get("properties")
    return properties if isinstance(properties, dict) else {}


def _types(schema: object) -> set[str]:
    """JSON types that a value may have; none where the schema does not say."""
    if not isinstance(schema, dict):
        return set()
    kind = schema.get("type")
    found = set(map(str, kind)) if isinstance(kind, list) else {str(kind)} if kind else set()
    for name in ("anyOf", "oneOf"):
        options = schema.get(name)
        for option in options if isinstance(options, list) else ():
            found |= _types(option)
    if "enum" in schema and not kind:
        found |= {"string" if isinstance(value, str) else "value" for value in schema["enum"]}
    return found


def _literal(text: str) -> str | None:
    """`text` as JSON; Python's spellings of constants too."""
    stripped = text.strip()
    stripped = {"True": "true", "False": "false", "None": "null"}.get(stripped, stripped)
    try:
        json.loads(stripped)
    except (ValueError, RecursionError):
        return None
    return stripped
