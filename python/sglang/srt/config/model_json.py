"""Typed access to the JSON documents of a model folder; every complaint names the file and the field."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang.srt.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises CheckpointError where it is missing, unreadable or no object."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} holds {type(document).__name__}, expected an object")
    return document


class JsonFields:
    """Fields of one JSON object. A field that is absent or null takes the default; without default it is an error."""

    def __init__(self, source: str, values: Mapping[str, Any]) -> None:
        self.source = source
        self._values = values

    def raw(self, name: str) -> Any:  # noqa: ANN401 - JSON
        """The value as it stands, None where absent."""
        return self._values.get(name)

    def names(self) -> tuple[str, ...]:
        """Every field that is there."""
        return tuple(self._values)

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.raw(name) is not None

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer; raises CheckpointError for any other type."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, "an integer")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """An integer or a float, as float."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, "a number")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """A number, None where absent."""
        return self.number(name) if self.has(name) else None

    def boolean(self, name: str, default: bool) -> bool:
        """A JSON true or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def ids(self, name: str) -> tuple[int, ...]:
        """One token id or a list of them; empty where absent."""
        value = self.raw(name)
        if value is None:
            return ()
        items = value if isinstance(value, list) else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) for item in items):
            raise self.wrong(name, "a token id or a list of token ids")
        return tuple(items)

    def child(self, name: str) -> "JsonFields | None":
        """A nested object, None where absent."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return JsonFields(f"{self.source}: {name}", value)

    def wrong(self, name: str, expected: str) -> CheckpointError:
        """The error for a field of the wrong type or value."""
        return CheckpointError(f"{self.source}: {name} is {self.raw(name)!r}, expected {expected}")

    def _get(self, name: str, default: Any) -> Any:  # noqa: ANN401 - JSON
        value = self.raw(name)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"{self.source}: {name} is missing")
        return value
