"""The scheduler's log lines, as SGLang's users know them: one a prefill step, one every so many decode steps."""

import logging
from collections.abc import Callable, Mapping

LOG = logging.getLogger("sglang.scheduler")


class StepLog:
    """Counts steps and writes."""

    def __init__(self, interval: int) -> None:
        """Decode steps a line."""
        self._interval = interval
        self._decodes = 0

    def prefill(self, *, sequences: int, tokens: int, cached: int, gauges: Callable[[], Mapping[str, float]]) -> None:
        """A step with prompt tokens was submitted; `sequences` began with it, and found `cached` tokens cached."""
        if not LOG.isEnabledFor(logging.INFO):
            return
        now = gauges()
        LOG.info(
            "Prefill batch, #new-seq: %d, #new-token: %d, #cached-token: %d, token usage: %.2f, #running-req: %d, "
            "#queue-req: %d",
            sequences,
            tokens,
            cached,
            now["token_usage"],
            now["num_running_reqs"],
            now["num_queue_reqs"],
        )

    def decode(self, gauges: Callable[[], Mapping[str, float]]) -> None:
        """A step without prompt tokens was submitted."""
        self._decodes += 1
        if self._decodes % self._interval or not LOG.isEnabledFor(logging.INFO):
            return
        now = gauges()
        LOG.info(
            "Decode batch, #running-req: %d, #token: %d, token usage: %.2f, gen throughput (token/s): %.2f, "
            "#queue-req: %d",
            now["num_running_reqs"],
            now["num_used_tokens"],
            now["token_usage"],
            now["gen_throughput"],
            now["num_queue_reqs"],
        )
