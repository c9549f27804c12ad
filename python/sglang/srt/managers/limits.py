"""The numbers that bound a scheduler, resolved once."""

from dataclasses import dataclass
from typing import Literal

PolicyName = Literal["fcfs", "lpm", "priority"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one scheduler. Tokens and counts; all positive."""

    max_running: int
    """Row slots of the worker: requests that hold pages."""
    max_queued: int
    chunk: int
    """Prompt tokens a step at most (--chunked-prefill-size)."""
    max_prefill: int
    """Prompt tokens of all requests that prefill at the same time (--max-prefill-tokens); one longer prompt may run
    alone.
    """
    context: int
    """Positions a request may reach."""
    layers: int
    """Counter bumps a step."""
    policy: PolicyName = "fcfs"
    mixed: bool = False
    """Whether a step may hold prompt chunks and decode rows (--enable-mixed-chunk)."""
    depth: int = 2
    """Steps in flight: 2 plans the next while one runs, 1 does not (--disable-overlap-schedule)."""
    conservativeness: float = 1.0
    stream_interval: int = 1
    log_interval: int = 40
    """Decode steps a log line (--decode-log-interval)."""
    check_invariants: bool = False
    step_timeout: float = 300.0
    """Seconds that a step may run (--watchdog-timeout): a worker that takes longer hangs."""

    def growth(self, remaining: int) -> int:
        """Output tokens that admission keeps pages for, for a request that may still generate `remaining`.

        64 tokens is half of SGLang's default max_new_tokens: most requests end before their limit, and those that do
        not are served by retraction. --schedule-conservativeness scales it.
        """
        return min(remaining, int(64 * self.conservativeness))
