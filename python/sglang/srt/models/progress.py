"""Progress of a byte stream on a terminal or in a log."""

import contextlib
import sys
import time
from typing import TextIO

GB = 1e9


class ByteProgress:
    """Reports GB done, GB/s and the share of the total: one redrawn line on a terminal, else one line per 25%.

    `total` is in bytes. `advance` may be called with any chunk; the last call that reaches `total` ends the report.
    """

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self._label = label
        self._total = max(total, 1)
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty()
        self._started = time.monotonic()
        self._done = 0
        self._shown = 0

    def advance(self, nbytes: int) -> None:
        """Count `nbytes` more bytes and redraw where a new mark is passed."""
        self._done += nbytes
        mark = self._done * (100 if self._live else 4) // self._total
        if mark == self._shown:
            return
        self._shown = mark
        finished = self._done >= self._total
        # A full disk under the log is no reason not to start.
        with contextlib.suppress(OSError):
            if self._live:
                self._stream.write("\r" + self.line() + ("\n" if finished else ""))
            else:
                self._stream.write(self.line() + "\n")
            self._stream.flush()

    def line(self) -> str:
        """The report as text."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        share = min(100, 100 * self._done // self._total)
        done = f"{self._done / GB:.2f}/{self._total / GB:.2f} GB"
        return f"{self._label} {share:3d}% {done} {self._done / GB / seconds:.2f} GB/s {seconds:.1f} s"
