"""Scanners of JSON that arrives in pieces: where a value ends, and the name and arguments of a call."""

import json


class ValueScanner:
    """Finds the end of one JSON value. What it passes is the value's text as it stands."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._scalar = False
        self.begun = False
        self.ended = False

    def push(self, text: str) -> int:
        """How many characters of `text` belong to the value; leading white space does not count as its beginning."""
        for position, character in enumerate(text):
            if self._step(character):
                self.ended = True
                # A number or a word ends in front of what follows it, everything else with its last character.
                return position if self._scalar else position + 1
        return len(text)

    def _step(self, character: str) -> bool:
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
                return self._depth == 0
            return False
        if self._scalar:
            return character in ",]} \t\r\n"
        if character.isspace():
            return False
        self.begun = True
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "]}":
            self._depth -= 1
            return self._depth <= 0
        elif self._depth == 0:
            self._scalar = True
        return False


class CallScanner:
    """One object {"name": ..., "arguments" or "parameters": ...}, its keys in any order."""

    NAMES = ("name", "function")
    ARGUMENTS = ("arguments", "parameters")

    def __init__(self) -> None:
        self.name: str | None = None
        self.ended = False
        self.broken = False
        """It is no such object."""
        self._raw = ""
        """The arguments' text so far, until it is taken."""
        self._buffer = ""
        self._key: str | None = None
        self._expect = "{"
        self._value = ValueScanner()
        self._quoted = False
        self._string = ""
        self.has_arguments = False

    def push(self, text: str) -> str:
        """Scans on; returns what lies behind the object, or from the character on that breaks it."""
        self._buffer += text
        while self._buffer and not (self.ended or self.broken):
            if not (self._take_value() if self._expect == "value" else self._take_mark()):
                break
        rest = ""
        if self.ended or self.broken:
            rest, self._buffer = self._buffer, ""
        return rest

    def take_arguments(self) -> str:
        """The arguments' text since the last call, once the name is known."""
        if self.name is None:
            return ""
        raw, self._raw = self._raw, ""
        return raw

    def _take_mark(self) -> bool:
        """Everything between values: braces, keys, colons, commas. False where more text is needed."""
        self._buffer = self._buffer.lstrip()
        if not self._buffer:
            return False
        if self._expect == "key" and self._buffer[0] == '"':
            return self._take_key()
        mark = self._buffer[0]
        moves = {("{", "{"): "key", (":", ":"): "value", (",", ","): "key"}
        if mark == "}" and self._expect in ("key", ","):
            self.ended = True
        elif (self._expect, mark) in moves:
            self._expect = moves[self._expect, mark]
        else:
            self.broken = True
            return False
        self._buffer = self._buffer[1:]
        return True

    def _take_key(self) -> bool:
        scanner = ValueScanner()
        length = scanner.push(self._buffer)
        if not scanner.ended:
            return False
        self._key = _string(self._buffer[:length])
        self._buffer = self._buffer[length:]
        self._expect = ":"
        self._value, self._quoted, self._string = ValueScanner(), False, ""
        return True

    def _take_value(self) -> bool:
        before = self._value.begun
        length = self._value.push(self._buffer)
        part = self._buffer[:length]
        self._buffer = self._buffer[length:]
        if not before:
            part = part.lstrip()
            self._quoted = part.startswith('"')
        if self._key in self.ARGUMENTS and not self._quoted:
            self.has_arguments = self.has_arguments or bool(part)
            self._raw += part
        else:
            self._string += part
        if not self._value.ended:
            return False
        self._end_value()
        return True

    def _end_value(self) -> None:
        if self._key in self.NAMES and self._quoted:
            self.name = _string(self._string)
        elif self._key in self.ARGUMENTS and self._quoted:
            # Some models write the arguments as a string of JSON, which is what clients get anyway.
            self.has_arguments = True
            self._raw += _string(self._string)
        self._expect = ","


def _string(literal: str) -> str:
    try:
        return str(json.loads(literal, strict=False))
    except ValueError:
        return literal[1:-1]
