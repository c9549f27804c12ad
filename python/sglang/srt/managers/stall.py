"""How long the scheduler has waited for the same step."""

LONGEST_TURN_S = 5.0
"""A turn that took longer was no turn: the whole process was stopped, and its worker with it. An idle loop turns once a
second."""


class Stall:
    """Adds up the time of turns in which a step was in flight and none ended."""

    def __init__(self) -> None:
        self.age = 0.0
        """Seconds."""
        self._last = float("inf")

    def turn(self, now: float, *, waiting: bool) -> float:
        """One turn of the loop; returns the age."""
        self.age = self.age + min(max(0.0, now - self._last), LONGEST_TURN_S) if waiting else 0.0
        self._last = now
        return self.age
