"""Engines as forks of one process that has imported torch and the engine's modules already.

A fresh engine spends 3.1 s of processor time until it is ready, nearly all on imports (torch alone takes 2.2); a forked
one 0.5 s. It has processes of its own as before, which run the same modules as `__main__`; ids, signals and deaths are
real. What differs: /proc shows the nursery's command line, and what Python or a library reads when it is loaded
(PYTHONPATH, OMP_NUM_THREADS, SGLANG_LIBFABRIC) is the nursery's. A test that looks at those starts its engine fresh.

Nothing has computed in the process that is forked, be it the nursery, an HTTP process that starts its scheduler or a
lead that starts its ranks: a child of one whose OpenMP helpers run would wait for helpers that it does not have.

Run as a script, this file is the nursery: requests come over a socket, each with the descriptor of a log.
"""

import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

MAINS = (
    "sglang.launch_server",
    "sglang.srt.entrypoints.scheduler_process",
    "sglang.srt.model_executor.tp.rank_process",
)
"""What a nursery runs."""
ALSO = ("sglang.srt.entrypoints.launch",)
"""What those import late."""
MESSAGE = 1 << 18
"""Bytes of a request: command line and environment."""


def program(argv: Sequence[str], env: Mapping[str, str], keep: Sequence[int] = ()) -> Callable[[], None]:
    """`python -m NAME ARGS`, argv from NAME on, as what a child runs between fork and exec: it never gets to the exec.

    `keep`: descriptors that stay open, besides the first three.
    """

    def run() -> None:
        code = 1
        try:
            for descriptor in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *keep}:  # noqa: PTH208
                with suppress(OSError):
                    os.close(descriptor)
            os.environ.clear()
            os.environ.update(env)
            sys.stdin = open(0, closefd=False)  # noqa: SIM115 - a buffer of its own
            sys.argv[:] = argv
            subprocess.Popen = Forked  # type: ignore[misc]
            runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    return run


FRESH = subprocess.Popen


class Forked(FRESH):  # type: ignore[misc, valid-type, type-arg]
    """subprocess.Popen that starts no new Python for what the nursery has loaded."""

    def __init__(self, args: Sequence[str], **settings: Any) -> None:  # noqa: ANN401
        if tuple(args[:2]) == (sys.executable, "-m") and args[2] in MAINS:
            keep = settings.get("pass_fds", ())
            settings["preexec_fn"] = program(args[2:], settings.get("env") or os.environ, keep)
        super().__init__(args, **settings)


def nursery(control: socket.socket) -> None:
    """Serve until the other end hangs up; children that live then get SIGTERM from the kernel."""
    from sglang.cluster.child import die_with_parent

    for name in (*MAINS, *ALSO):
        importlib.import_module(name)
    for name in MAINS:
        del sys.modules[name]  # runpy loads it as __main__
    children: dict[int, subprocess.Popen[bytes]] = {}
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, MESSAGE, 1)
        if not data:
            os._exit(0)
        request = json.loads(data)
        answer: int | None
        if "argv" in request:
            bound, run = die_with_parent(), program(request["argv"], request["env"])
            child = FRESH(
                [sys.executable, "-m", *request["argv"]],
                stdin=subprocess.DEVNULL,
                stdout=descriptors[0],
                stderr=subprocess.STDOUT,
                cwd=request["cwd"],
                start_new_session=True,
                preexec_fn=lambda bound=bound, run=run: (bound(), run()),  # type: ignore[misc]
            )
            os.close(descriptors[0])
            children[child.pid] = child
            answer = child.pid
        else:
            answer = children[request["poll"]].poll()
        control.send(json.dumps(answer).encode())


class Nursery:
    """The tests' end: one process for all engines of a test run, started with the first of them."""

    def __init__(self) -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            self.process = FRESH(
                [sys.executable, str(Path(__file__)), str(there.fileno())],
                pass_fds=(there.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))},
            )
        self._control = here
        self._lock = threading.Lock()

    def ask(self, request: Mapping[str, object], *descriptors: int) -> Any:  # noqa: ANN401
        """Its answer to one request."""
        with self._lock:
            socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
            data = self._control.recv(MESSAGE)
        assert data, f"the nursery ended with {self.process.wait(10)}"
        return json.loads(data)

    def close(self) -> None:
        """Its children that still live get SIGTERM."""
        self._control.close()
        self.process.wait(10)


class Child:
    """A process of the nursery, as the tests use subprocess.Popen."""

    def __init__(self, nursery: Nursery, args: Sequence[str], log: int, cwd: Path) -> None:
        """`args`: python -m MODULE ..., MODULE one of MAINS."""
        self.args = args
        self.returncode: int | None = None
        self._nursery = nursery
        request = {"argv": list(args[2:]), "env": dict(os.environ), "cwd": str(cwd)}
        self.pid: int = nursery.ask(request, log)

    def poll(self) -> int | None:
        """Its exit code, once it has ended."""
        if self.returncode is None:
            self.returncode = self._nursery.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float = 3600.0) -> int:
        """Raises subprocess.TimeoutExpired."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.02)
        return code

    def send_signal(self, number: int) -> None:
        """As Popen's: nothing happens to one that has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


if __name__ == "__main__":
    nursery(socket.socket(fileno=int(sys.argv[1])))
