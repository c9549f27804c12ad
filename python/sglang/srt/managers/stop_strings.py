"""Stop strings in a text that arrives piece by piece."""

from collections.abc import Sequence


class StopStrings:
    """Passes text on until one of the stop strings is complete.

    What comes out does not depend on how the text was cut into pieces: the stop string that is complete first wins (of
    two that end together the longer), and text that may still become one is held back.
    """

    def __init__(self, stops: Sequence[str], *, keep_match: bool = False) -> None:
        """`keep_match` also passes on the stop string itself (SGLang's no_stop_trim). Empty strings are ignored."""
        self._stops = tuple(sorted({stop for stop in stops if stop}, key=len, reverse=True))
        self._keep_match = keep_match
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> str:
        """Adds a piece; returns the text that is now certain. After a match always empty."""
        if not self._stops or self.matched is not None:
            return text if self.matched is None else ""
        buffer = self._held + text
        end, stop = self._first_complete(buffer)
        if stop:
            self.matched = stop
            self._held = ""
            return buffer[: end if self._keep_match else end - len(stop)]
        certain = len(buffer) - self._may_become_a_stop(buffer)
        self._held = buffer[certain:]
        return buffer[:certain]

    def finish(self) -> str:
        """The text ended: what was held back did not become a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_complete(self, buffer: str) -> tuple[int, str]:
        best = (len(buffer) + 1, "")
        for stop in self._stops:  # longest first, so that of equal ends the longest is kept
            start = buffer.find(stop)
            if start >= 0 and start + len(stop) < best[0]:
                best = (start + len(stop), stop)
        return best

    def _may_become_a_stop(self, buffer: str) -> int:
        """Length of the longest suffix of `buffer` that begins a stop string."""
        longest = min(len(buffer), len(self._stops[0]) - 1)
        for length in range(longest, 0, -1):
            suffix = buffer[-length:]
            if any(stop.startswith(suffix) for stop in self._stops):
                return length
        return 0
