"""torch's profiler on the compute thread, as a Chrome trace (Perfetto opens it)."""

import os
import time
from collections import deque
from pathlib import Path

from torch import profiler

from sglang.srt.messages.frontend import Done, Profile
from sglang.srt.model_executor.worker import ComputeWorker


class TorchProfiler:
    """Obeys Profile messages. What it answers comes out of `poll`, in the caller's thread."""

    def __init__(self, worker: ComputeWorker, name: str) -> None:
        """`name` begins the file names."""
        self._worker = worker
        self._name = name
        self._running: profiler.profile | None = None
        self._folder = Path()
        self._answers: deque[Done] = deque()

    def obey(self, message: Profile) -> None:
        """Begin or end; the compute thread does it between two steps."""
        self._worker.call(lambda: self._answers.append(self._do(message)))

    def poll(self) -> list[Done]:
        """Answers that are due."""
        return [self._answers.popleft() for _ in range(len(self._answers))]

    def _do(self, message: Profile) -> Done:
        try:
            text = self._start(message.folder) if message.start else self._stop()
        except (OSError, RuntimeError, ValueError) as error:
            return Done(call=message.call, text=f"profiler: {error}", failed=True)
        return Done(call=message.call, text=text)

    def _start(self, folder: str) -> str:
        if self._running is not None:
            raise ValueError("a profile is running already")
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        running = profiler.profile(activities=[profiler.ProfilerActivity.CPU], record_shapes=True)
        running.start()
        self._running = running
        return folder

    def _stop(self) -> str:
        running, self._running = self._running, None
        if running is None:
            raise ValueError("no profile is running")
        running.stop()
        path = self._folder / f"{self._name}-{os.getpid()}-{time.time_ns()}.trace.json.gz"
        running.export_chrome_trace(str(path))
        return str(path)
