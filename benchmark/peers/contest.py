"""Contenders as processes of which one runs at a time: the others are stopped, so that no spinning thread disturbs."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from peers.venvs import CONTENDERS, Peer, preload

Answer = dict[str, Any]


class ContenderError(Exception):
    """A contender ended, or said nothing sensible; the message holds the end of its log."""


class Contender:
    """One engine in a process group of its own, stopped between orders."""

    def __init__(self, peer: Peer, settings: dict[str, Any], log: Path) -> None:
        """Start it and load its model. Raises ContenderError."""
        self.name = peer.name
        self._log = log
        threads = str(settings["threads"])
        environment = {**os.environ, **preload(peer), "OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"}
        environment.pop("PYTHONPATH", None)
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                [str(peer.python), str(CONTENDERS / peer.script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                env=environment,
                text=True,
                start_new_session=True,
            )
        try:
            loaded = self.ask(settings)
        except ContenderError:
            self.close()
            raise
        self.version: str = loaded["version"]
        self.load_s: float = loaded["seconds"]

    def ask(self, order: dict[str, Any]) -> Answer:
        """Let it run for one order. Raises ContenderError where it does not answer."""
        assert self._process.stdin and self._process.stdout
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        self._signal(signal.SIGSTOP)
        if not line:
            tail = self._log.read_text(errors="replace").strip().splitlines()[-8:]
            raise ContenderError(f"{self.name} ended; the end of {self._log}:\n" + "\n".join(tail))
        answer: Answer = json.loads(line)
        return answer

    def peak_bytes(self) -> int:
        """Largest resident memory so far, summed over its processes (pages they share count twice)."""
        return sum(_peak(pid) for pid in self._group())

    def close(self) -> None:
        """End it and its helpers."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                if pipe:
                    pipe.close()

    def __enter__(self) -> "Contender":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _signal(self, number: signal.Signals) -> None:
        """To its whole session: a helper may have a process group of its own."""
        for pid in list(self._group()):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _group(self) -> Iterator[int]:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if os.getsid(int(entry.name)) == self._process.pid or int(entry.name) == self._process.pid:
                        yield int(entry.name)


def _peak(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def rest() -> None:
    """A moment between two contenders, for the memory bus and the clock of the cores to settle."""
    time.sleep(0.1)
