"""One process of a cluster: its log, its death, its end."""

import asyncio
import contextlib
import ctypes
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence

from sglang.srt.errors import EngineError

LogSink = Callable[[str, str], None]
"""Gets (name of the process, one line of its log)."""

PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>."""
TAIL_LINES = 20
LONGEST_LINE = 64 * 1024


class ChildDiedError(EngineError):
    """A process of the cluster ended by itself; the message holds the end of its log."""

    def __init__(self, name: str, how: str, tail: Sequence[str]) -> None:
        lines = "\n".join(f"  | {line}" for line in tail) or "  (it logged nothing)"
        super().__init__(f"{name} {how}; the end of its log:\n{lines}")
        self.name = name


class Child:
    """A running process in a process group of its own.

    It gets SIGTERM from the kernel when this process dies, however that happens, so that nothing is left behind.
    """

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        log: asyncio.StreamReader,
        transport: asyncio.ReadTransport,
        sink: LogSink,
    ) -> None:
        """Use `start`. `transport` is the pipe that feeds `log`."""
        self.name = name
        self._process = process
        self._transport = transport
        self._sink = sink
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._pump = asyncio.create_task(self._read_log(log))

    @classmethod
    async def start(cls, name: str, command: Sequence[str], sink: LogSink) -> "Child":
        """Start `command`. Raises EngineError where it cannot be started.

        The pipe is ours, not asyncio's: before Python 3.12.4 asyncio reports the end of a process only when its pipes
        are closed, and a helper that outlives the process holds them open.
        """
        source, sink_fd = os.pipe()
        log = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(log), os.fdopen(source, "rb", buffering=0)
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink_fd,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the launcher alone, which then stops all in order
                preexec_fn=die_with_parent(),
            )
        except OSError as error:
            transport.close()
            raise EngineError(f"cannot start {name} ({command[0]}): {error}") from error
        finally:
            os.close(sink_fd)
        return cls(name, process, log, transport, sink)

    @property
    def pid(self) -> int:
        """Process id, and id of its group."""
        return self._process.pid

    async def died(self) -> ChildDiedError:
        """Wait until it ends by itself; say how."""
        code = await self._process.wait()
        await asyncio.wait([self._pump], timeout=1.0)  # a helper of it may hold the pipe open
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return ChildDiedError(self.name, how, tuple(self.tail))

    async def stop(self, grace: float) -> None:
        """End it and everything in its group: SIGTERM, and SIGKILL after `grace` seconds.

        SIGTERM goes to the process alone, which knows in what order its own helpers end.
        """
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), grace)
        self.kill()
        await self._process.wait()
        await asyncio.wait([self._pump], timeout=1.0)
        self._transport.close()
        self._pump.cancel()

    def kill(self) -> None:
        """SIGKILL to the whole group, also where its leader is gone already."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _read_log(self, log: asyncio.StreamReader) -> None:
        rest = b""
        while data := await log.read(LONGEST_LINE):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._log(line)
            if len(rest) > LONGEST_LINE:
                self._log(rest)
                rest = b""
        if rest:
            self._log(rest)

    def _log(self, raw: bytes) -> None:
        line = raw.decode(errors="replace").rstrip()
        self.tail.append(line)
        self._sink(self.name, line)


def die_with_parent() -> Callable[[], None]:
    """What the child runs between fork and exec. The library is loaded before: after a fork that may deadlock."""
    prctl, parent = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()

    def before_exec() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return before_exec
