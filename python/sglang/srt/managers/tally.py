"""What the scheduler counts for /metrics and its log line."""

from sglang.srt.core.step import StepResult
from sglang.srt.managers.request import Request


class Tally:
    """Totals since the start, and a throughput over the time since it was last asked."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.requests = 0
        self.aborted = 0
        self.refused = 0
        self.retractions = 0
        self.steps = 0
        self.compute_ns = 0
        self.cached_tokens = 0
        self.looked_up_tokens = 0
        self._asked_at: float | None = None
        self._generated_then = 0
        self._rate = 0.0

    def step(self, rows: int, prompt_tokens: int) -> None:
        """A step of `rows` rows was submitted."""
        self.steps += 1
        self.prompt_tokens += prompt_tokens

    def took(self, result: StepResult) -> None:
        """A step is over."""
        self.compute_ns += result.ended_ns - result.started_ns

    def finished(self, request: Request) -> None:
        """A request is over for its client."""
        self.requests += 1
        self.aborted += request.finish_reason == "abort"
        self.refused += request.finish_reason == "refused"
        if request.cached_tokens >= 0:
            self.cached_tokens += request.cached_tokens
            self.looked_up_tokens += request.prompt_length

    def gauges(self, now: float) -> dict[str, float]:
        """Throughput since the last call at least a second ago, and the share of prompt tokens found cached."""
        if self._asked_at is None or now - self._asked_at >= 1.0:
            if self._asked_at is not None:
                self._rate = (self.generated_tokens - self._generated_then) / (now - self._asked_at)
            self._asked_at, self._generated_then = now, self.generated_tokens
        hit = self.cached_tokens / self.looked_up_tokens if self.looked_up_tokens else 0.0
        return {"gen_throughput": self._rate, "cache_hit_rate": hit}

    def counters(self) -> dict[str, float]:
        """Totals, by metric name."""
        return {
            "computed_prompt_tokens_total": self.prompt_tokens,
            "computed_generation_tokens_total": self.generated_tokens,
            "cached_prompt_tokens_total": self.cached_tokens,
            "num_finished_requests_total": self.requests,
            "num_aborted_requests_total": self.aborted,
            "num_refused_requests_total": self.refused,
            "num_retractions_total": self.retractions,
            "num_steps_total": self.steps,
            "compute_seconds_total": self.compute_ns / 1e9,
        }
