"""The helper of trial.py: compiles each grammar in a forked child under limits of CPU time, memory and stack.

python -m sglang.srt.constrained.trial_process LISTENER_FD    # a Setup, with its length before it, on stdin
"""

import contextlib
import os
import resource
import select
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import BinaryIO

import msgspec

from sglang.srt.constrained.base import GrammarError
from sglang.srt.constrained.trial import Setup, Verdict
from sglang.srt.constrained.xgrammar_compiler import XGrammarCompiler
from sglang.srt.core.grammar import GrammarSpec

STACK_BYTES = 4 << 20
"""Half of what the engine's threads have: nesting that fits here fits there."""
NICENESS = 5
"""Running requests come first."""
MAX_JOB = 16 << 20


def main() -> None:
    """Serve until stdin ends or breaks."""
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        _serve(listener, sys.stdin.buffer)
        # An engine that was killed cannot remove the folder of its socket.
        shutil.rmtree(Path(listener.getsockname()).parent, ignore_errors=True)


def _serve(listener: socket.socket, stdin: BinaryIO) -> None:
    size = int.from_bytes(stdin.read(4), "little")
    said = stdin.read(size)
    if not size or len(said) < size:
        return  # the engine ended before it had said all
    setup = msgspec.msgpack.decode(said, type=Setup)
    compiler = XGrammarCompiler(setup.vocabulary, whitespace=setup.whitespace)
    os.nice(NICENESS)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # finished trials need no reaping
    while stdin.fileno() not in select.select([stdin.fileno(), listener.fileno()], [], [])[0]:
        line, _ = listener.accept()
        with line:
            if os.fork() == 0:
                _supervise(line, setup, compiler)


def _supervise(line: socket.socket, setup: Setup, compiler: XGrammarCompiler) -> None:
    """In a child: fork once more, so that whatever ends the compilation is seen and said. Does not return."""
    with contextlib.suppress(OSError):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        line.settimeout(setup.limits.seconds)
        parts: list[bytes] = []
        while (part := line.recv(65536)) and len(parts) * 65536 < MAX_JOB:
            parts.append(part)
        spec = msgspec.msgpack.decode(b"".join(parts), type=GrammarSpec)
        line.sendall(msgspec.msgpack.encode(Verdict(error=_try(spec, setup, compiler))))
    os._exit(0)


def _try(spec: GrammarSpec, setup: Setup, compiler: XGrammarCompiler) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _limit(setup)
        os.write(writer, _compile(spec, setup, compiler).encode()[:4096])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        error = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return _ended_by(os.WTERMSIG(status), setup)
    return error


def _limit(setup: Setup) -> None:
    """Default actions of these signals end the process even inside native code."""
    seconds = setup.limits.seconds
    cpu = max(1, round(seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, STACK_BYTES))
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - one number, no path to handle
        used = int(file.read().split()[0]) * resource.getpagesize()
    space = used + setup.limits.work_bytes
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    signal.setitimer(signal.ITIMER_REAL, 3 * seconds)


def _compile(spec: GrammarSpec, setup: Setup, compiler: XGrammarCompiler) -> str:
    try:
        compiled = compiler.compile(spec)
    except GrammarError as error:
        return str(error)
    except MemoryError:
        return f"the grammar passes the limit of {setup.limits.work_bytes >> 20} MiB of memory for its compilation"
    limit = setup.limits.compiled_bytes
    if compiled.nbytes > limit:
        return f"the compiled grammar has {compiled.nbytes >> 20} MiB; the limit is {limit >> 20} MiB"
    return ""


def _ended_by(number: int, setup: Setup) -> str:
    if number in (signal.SIGXCPU, signal.SIGALRM, signal.SIGKILL):
        return f"the grammar passes the limit of {setup.limits.seconds:g} s of compilation"
    return f"the grammar is nested too deeply or breaks the compiler ({signal.Signals(number).name})"


if __name__ == "__main__":
    main()
