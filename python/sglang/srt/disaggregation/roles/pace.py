"""How fast this engine prefills, learned from its own steps."""

from sglang.srt.core.step import StepResult

UNMEASURED = 100.0
"""Tokens a second assumed before the first step: below what the slowest measured model does here (facts: 150-500)."""

SMOOTHING = 0.2
"""Share of the newest step in the average: five steps forget a cold start."""


class Pace:
    """A moving average of prompt tokens a second."""

    def __init__(self) -> None:
        self.tokens_per_second = UNMEASURED
        self._measured = False
        self._sizes: dict[int, int] = {}

    def submitted(self, step_id: int, tokens: int) -> None:
        """`tokens` prompt tokens more belong to this step."""
        self._sizes[step_id] = self._sizes.get(step_id, 0) + tokens

    def stepped(self, result: StepResult) -> None:
        """A step is over."""
        tokens = self._sizes.pop(result.step_id, 0)
        seconds = (result.ended_ns - result.started_ns) / 1e9
        if not tokens or seconds <= 0:
            return
        rate = tokens / seconds
        share = SMOOTHING if self._measured else 1.0
        self._measured = True
        self.tokens_per_second += share * (rate - self.tokens_per_second)

    def estimate_ms(self, tokens: int) -> int:
        """Milliseconds for `tokens` prompt tokens, queue included by the caller."""
        return int(1000 * tokens / self.tokens_per_second)
