"""What the scheduler needs from the outside, as protocols; implemented by rooms the scheduler may not import."""

from typing import Protocol

from sglang.srt.core.step import StepPlan, StepResult


class Worker(Protocol):
    """Executes steps in the order of submission, in its own thread or processes."""

    def submit(self, plan: StepPlan) -> None:
        """Queue a step. Never blocks; the scheduler keeps at most two steps in flight."""
        ...

    def poll(self) -> list[StepResult]:
        """Finished steps in order, without blocking. Raises EngineError with the worker's traceback once it has died."""
        ...

    def fileno(self) -> int:
        """A descriptor that is readable while poll() would return something or raise."""
        ...

    def close(self) -> None:
        """Stop after the step that runs now; idempotent."""
        ...
