"""Timelines in the Chrome trace format, which Perfetto and chrome://tracing open.

In the format's JSON array form the closing bracket is optional, so that a trace of a killed process still opens.
"""

import json
import threading
from collections.abc import Mapping
from io import TextIOWrapper
from pathlib import Path

from sglang.srt.errors import ConfigError

MAX_EVENTS = 2_000_000
"""About 250 MB of JSON; later events are dropped, so that a forgotten --trace-file cannot fill a disk."""


class ChromeTracer:
    """A `Tracer` that writes one line an event to a file."""

    enabled = True

    def __init__(self, path: Path, process: str, pid: int) -> None:
        """Raises ConfigError where the file cannot be written."""
        self._pid = pid
        self._lock = threading.Lock()
        self._tracks: dict[str, int] = {}
        self._events = 0
        try:
            self._file: TextIOWrapper | None = path.open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--trace-file {path}: {error.strerror}") from error
        self._file.write("[\n")
        self._write({"ph": "M", "name": "process_name", "args": {"name": process}})

    def slice(self, track: str, name: str, start_ns: int, end_ns: int, **details: int | float | str) -> None:
        with self._lock:
            event = {"ph": "X", "name": name, "ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3, "args": details}
            self._write(event, self._track(track))

    def instant(self, track: str, name: str, at_ns: int, **details: int | float | str) -> None:
        with self._lock:
            self._write({"ph": "i", "s": "t", "name": name, "ts": at_ns / 1e3, "args": details}, self._track(track))

    def bind(self, rid: str, context: str) -> None:
        """Timelines show requests by their rid alone."""

    def release(self, rid: str) -> None:
        """Nothing was bound."""

    def _track(self, name: str) -> int:
        if name not in self._tracks:
            self._tracks[name] = len(self._tracks) + 1
            self._write({"ph": "M", "name": "thread_name", "args": {"name": name}}, self._tracks[name])
        return self._tracks[name]

    def _write(self, event: Mapping[str, object], track: int = 0) -> None:
        if self._file is None or self._events >= MAX_EVENTS:
            return
        self._events += 1
        self._file.write(json.dumps({**event, "pid": self._pid, "tid": track}) + ",\n")

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
