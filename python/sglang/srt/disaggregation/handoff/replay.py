"""Which transfer numbers a prefill engine has heard of: an ask is obeyed once, and never after its cancel."""

KEPT = 8192
"""Numbers remembered a decode engine: twice the counting slots that it may have open at a time."""


class ReplayWindow:
    """Numbers of one life of one decode engine, which hands them out in ascending order and never twice.

    A control frame may come twice, and a cancel may overtake its ask. The pages that such an ask names belong to
    someone else by then, so it must not be obeyed.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._floor = -1
        self._seen: set[int] = set()

    def take(self, number: int) -> bool:
        """Whether the number is new; it is not from here on. Numbers older than the window count as seen."""
        if number <= self._floor or number in self._seen:
            return False
        self._seen.add(number)
        if len(self._seen) > self._kept:
            oldest = sorted(self._seen)[: self._kept // 2]
            self._floor = oldest[-1]
            self._seen.difference_update(oldest)
        return True
