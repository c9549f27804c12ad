"""Starts, watches and ends the scheduler process."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from sglang.srt.config.hardware import child_environment
from sglang.srt.config.server import ServerConfig
from sglang.srt.kv_pool.shareable import SharedMemory

SCHEDULER = (sys.executable, "-m", "sglang.srt.entrypoints.scheduler_process")

_log = logging.getLogger("sglang.launch")


class SchedulerProcess:
    """The child of an HTTP process. It lives as long as its stdin is open, so it cannot outlive its parent."""

    def __init__(
        self,
        config: ServerConfig,
        address: str,
        command: Sequence[str] = SCHEDULER,
        lockstep: SharedMemory | None = None,
    ) -> None:
        """Starts `command --address ADDRESS [--lockstep FD]` and writes the configuration, one line of JSON, to its
        stdin. `lockstep` is what the replicas of --enable-dp-attention share.
        """
        given = () if lockstep is None else (lockstep.fileno(),)
        flags = ["--address", address, *(f"--lockstep={descriptor}" for descriptor in given)]
        self._child = subprocess.Popen(
            [*command, *flags],
            pass_fds=given,
            stdin=subprocess.PIPE,
            env=child_environment(config.threads),
            process_group=0,  # Ctrl-C in a terminal is for the parent, which lets requests finish first
        )
        assert self._child.stdin is not None
        self._stdin = self._child.stdin
        try:
            self._stdin.write(msgspec.json.encode(config) + b"\n")
            self._stdin.flush()
        except BrokenPipeError:
            _log.debug("the engine process ended before it read its configuration")

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def watch(self, on_exit: Callable[[int], None]) -> None:
        """Calls `on_exit` with the exit code, on the running event loop, when the child ends."""
        loop = asyncio.get_running_loop()

        def wait() -> None:
            code = self._child.wait()
            if not loop.is_closed():
                loop.call_soon_threadsafe(on_exit, code)

        threading.Thread(target=wait, name="scheduler-watch", daemon=True).start()

    def let_go(self) -> None:
        """Tells the child to end, by closing its stdin. Idempotent."""
        try:
            self._stdin.close()
        except BrokenPipeError:
            _log.debug("the engine process had ended")

    def stop(self, patience_s: float) -> None:
        """Ends the child: lets go, waits, then kills it. Idempotent; afterwards it is reaped."""
        self.let_go()
        try:
            self._child.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        _sweep(self._child.pid)


def _sweep(pid: int) -> None:
    """Remove what a killed scheduler left in /dev/shm: its endpoint's memory (pyfabric/_core/shared_memory.cpp)."""
    space = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - of the link's target, which is no file
    for path in Path("/dev/shm").glob(f"pyfabric-{space}-{pid}-*"):
        path.unlink(missing_ok=True)


def exit_code_of(child_code: int) -> int:
    """A child's end as the parent's exit code: never 0, and a shell's 128 + n for signal n."""
    return 128 - child_code if child_code < 0 else child_code or 1
