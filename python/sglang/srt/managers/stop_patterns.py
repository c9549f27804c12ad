"""Regular expressions that end an output (SGLang's stop_regex), with a bound on the time of each search."""

from collections.abc import Sequence
from functools import lru_cache

import regex

from sglang.srt.errors import RequestError

MAX_PATTERN = 256
"""Characters. Compiling is not bounded in time, so what is compiled is bounded in length."""
PATIENCE_S = 0.02
"""A search that takes longer stalls every stream; its request ends. The library looks at its clock now and then only:
such a search took 0.09 s on a machine with a load of 10."""
TAIL = 1024
"""Characters before the newest ones in which a match may begin."""


@lru_cache(maxsize=256)
def compiled(pattern: str) -> "regex.Pattern[str]":
    """Raises RequestError where the pattern is too long or none."""
    if len(pattern) > MAX_PATTERN:
        raise RequestError(f"stop_regex: a pattern may have {MAX_PATTERN} characters", param="stop_regex")
    try:
        return regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError) as error:
        raise RequestError(
            f"stop_regex: {pattern[:60]!r} is no regular expression: {error}", param="stop_regex"
        ) from error


class StopPatterns:
    """Passes text on up to the end of the first match. The match itself stays in the text, as with SGLang."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [(pattern, compiled(pattern)) for pattern in patterns]
        self._tail = ""
        self.matched: str | None = None
        """The pattern that ended the text."""

    def push(self, text: str) -> str:
        """Adds a piece. Raises RequestError where a search takes too long."""
        if not (self._patterns and text):
            return text
        buffer = self._tail + text
        end = min((found for found in (self._end(*item, buffer) for item in self._patterns) if found), default=None)
        if end is None:
            self._tail = buffer[-TAIL:]
            return text
        position, self.matched = end
        return text[: max(0, position - len(self._tail))]

    def _end(self, pattern: str, matcher: "regex.Pattern[str]", buffer: str) -> tuple[int, str] | None:
        try:
            found = matcher.search(buffer, timeout=PATIENCE_S)
        except TimeoutError as error:
            raise RequestError(
                f"stop_regex: {pattern[:60]!r} took longer than {PATIENCE_S * 1e3:g} ms to search", param="stop_regex"
            ) from error
        return None if found is None else (found.end(), pattern)
