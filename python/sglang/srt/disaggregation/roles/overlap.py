"""How much of the KV left while the forward that made it was still running."""

from sglang.srt.core.ports import WritesDone
from sglang.srt.core.step import StepResult
from sglang.srt.core.trace import Tracer

KEPT_STEPS = 256
"""Steps whose end is remembered; a program ends within a few steps of its own."""


class OverlapMeter:
    """Joins the ends of steps with the ends of their writes, whichever comes first."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._steps: dict[int, StepResult] = {}
        self._waiting: list[tuple[int, WritesDone]] = []
        self.bytes_total = 0
        """Bytes of pages that a step completed. Cached pages are not in it: no forward made them."""
        self.bytes_in_forward = 0
        """Of those, bytes whose write was posted before the forward ended."""

    def stepped(self, result: StepResult) -> None:
        """A step is over."""
        self._steps[result.step_id] = result
        while len(self._steps) > KEPT_STEPS:
            del self._steps[next(iter(self._steps))]
        waiting, self._waiting = self._waiting, []
        for step_id, done in waiting:
            self.done(step_id, done)

    def done(self, step_id: int, done: WritesDone) -> None:
        """All writes of a step for one request are delivered."""
        step = self._steps.get(step_id)
        if step is None:
            self._waiting.append((step_id, done))
            return
        self.bytes_total += sum(done.layer_bytes)
        self.bytes_in_forward += sum(
            size
            for size, posted in zip(done.layer_bytes, done.posted_ns, strict=True)
            if posted <= step.forward_ended_ns
        )
        if self._tracer.enabled:
            self._trace(step, done)

    def _trace(self, step: StepResult, done: WritesDone) -> None:
        """One slice for the forward, and one a layer from the watcher's look at the counter to the last post."""
        step_id = step.step_id
        self._tracer.slice("forward", f"step {step_id}", step.started_ns, step.forward_ended_ns, step=step_id)
        layers = zip(done.seen_ns, done.posted_ns, done.layer_bytes, strict=True)
        for layer, (seen, posted, size) in enumerate(layers):
            self._tracer.slice("writes", f"layer {layer}", seen, posted, step=step_id, layer=layer, bytes=size)
