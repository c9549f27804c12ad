"""What constrains an output, and how the scheduler learns that a constraint is ready."""

from enum import Enum
from typing import Literal, Protocol

import msgspec

GrammarKind = Literal["json_object", "json_schema", "regex", "ebnf", "structural_tag"]


class GrammarSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A grammar as a client gave it: equal specs compile to the same thing."""

    kind: GrammarKind
    text: str = ""
    """JSON of the schema or structural tag, the expression, or the rules; empty for json_object."""


class GrammarState(Enum):
    """Where a grammar's compilation stands."""

    PENDING = "pending"
    READY = "ready"
    REJECTED = "rejected"
    """It cannot be used, and never will; `reason` says why."""


class Grammars(Protocol):
    """Compiles grammars beside the scheduler's loop. Nothing in it blocks."""

    def acquire(self, spec: GrammarSpec) -> GrammarState:
        """Start compiling where that is needed, and keep the result until as many `release` calls."""
        ...

    def release(self, spec: GrammarSpec) -> None:
        """One user less; a grammar without users stays cached while there is room."""
        ...

    def reason(self, spec: GrammarSpec) -> str:
        """Why a REJECTED grammar cannot be used."""
        ...

    def poll(self) -> list[tuple[GrammarSpec, GrammarState]]:
        """Compilations that ended since the last call."""
        ...

    def counters(self) -> dict[str, float]:
        """For /metrics."""
        ...

    def close(self) -> None:
        """Stop compiling; idempotent."""
        ...


class NoGrammars:
    """An engine without structured output: every grammar is rejected."""

    def acquire(self, spec: GrammarSpec) -> GrammarState:
        return GrammarState.REJECTED

    def release(self, spec: GrammarSpec) -> None:
        pass

    def reason(self, spec: GrammarSpec) -> str:
        return "this engine has no structured output; start it with --grammar-backend xgrammar"

    def poll(self) -> list[tuple[GrammarSpec, GrammarState]]:
        return []

    def counters(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass
