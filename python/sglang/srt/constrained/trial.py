"""Tries a compilation in a process that can be stopped: a grammar library's own threads cannot."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import msgspec

from sglang.srt.constrained.base import GrammarError
from sglang.srt.constrained.limits import GrammarLimits
from sglang.srt.constrained.vocabulary import Vocabulary
from sglang.srt.core.grammar import GrammarSpec

MODULE = "sglang.srt.constrained.trial_process"
START_S = 60.0
"""Importing the library in the helper takes 3 s on an idle machine."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What the helper is told once, on its stdin."""

    vocabulary: Vocabulary
    limits: GrammarLimits
    whitespace: bool


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How a trial ended; no error: the grammar compiles within the limits."""

    error: str = ""


class Trials:
    """Owns the helper process. Thread-safe: each trial is a connection of its own."""

    def __init__(self, setup: Setup) -> None:
        """Starts the helper and does not wait for it; trials queue until it is up."""
        self._limits = setup.limits
        self._folder = Path(tempfile.mkdtemp(prefix="sglang-grammar-"))
        self._address = str(self._folder / "s")
        self._closed = False
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._address)
            listener.listen(setup.limits.workers * 4)
            self._helper = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(listener.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=(listener.fileno(),),
                process_group=0,  # Ctrl-C in a terminal is for the engine
            )
        # The helper reads its set-up when it has imported everything; writing must not wait for that.
        self._teller = threading.Thread(target=self._tell, args=(msgspec.msgpack.encode(setup),), daemon=True)
        self._teller.start()

    def _tell(self, setup: bytes) -> None:
        assert self._helper.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._helper.stdin.write(len(setup).to_bytes(4, "little") + setup)
            self._helper.stdin.flush()

    def check(self, spec: GrammarSpec) -> None:
        """Raises GrammarError where `spec` does not compile within the limits."""
        try:
            answer = self._ask(msgspec.msgpack.encode(spec))
            verdict = msgspec.msgpack.decode(answer, type=Verdict)
        except TimeoutError as error:
            limit = self._limits.seconds
            raise GrammarError(f"the grammar passes the limit of {limit:g} s of compilation") from error
        except (OSError, msgspec.DecodeError) as error:
            what = "the engine is stopping" if self._closed else "the grammar's compilation was lost"
            raise GrammarError(what, status=503, kind="service_unavailable") from error
        if verdict.error:
            raise GrammarError(verdict.error)

    def _ask(self, job: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(START_S + 3 * self._limits.seconds)
            line.connect(self._address)
            line.sendall(job)
            line.shutdown(socket.SHUT_WR)
            parts = []
            while part := line.recv(65536):
                parts.append(part)
            return b"".join(parts)

    def close(self) -> None:
        """Ends the helper and what it compiles."""
        if self._closed:
            return
        self._closed = True
        assert self._helper.stdin is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._helper.pid, 9)
        self._helper.wait()
        self._teller.join()
        with contextlib.suppress(BrokenPipeError):
            self._helper.stdin.close()
        shutil.rmtree(self._folder, ignore_errors=True)
