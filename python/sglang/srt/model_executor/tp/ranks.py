"""The lead's view of the other ranks: starting, watching and ending their processes."""

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from sglang.srt.errors import EngineError
from sglang.srt.kv_pool.shareable import SharedMemory, receive_with, send_with
from sglang.srt.model_executor.options import WorkerOptions
from sglang.srt.model_executor.tp.exchange import Exchange, exchange_bytes
from sglang.srt.model_executor.tp.messages import (
    MAX_MESSAGE,
    FromRank,
    RankAllocate,
    RankFailed,
    RankLoaded,
    RankPool,
    RankStart,
    ToRank,
    from_rank,
    to_rank,
)

LOG = logging.getLogger(__name__)
COMMAND = (sys.executable, "-m", "sglang.srt.model_executor.tp.rank_process")
LOAD_S = 1800.0
"""Weights of hundreds of GB may come from a slow disk."""
EXIT_S = 2.0
"""A rank whose socket is closed ends at once; one that does not is killed."""
STACK_S = 0.5
"""How long a rank may take to write down where it is."""
M = TypeVar("M", RankLoaded, RankPool)


class _Rank(NamedTuple):
    number: int
    process: subprocess.Popen[bytes]
    control: socket.socket
    stacks: int
    """Read end of the pipe that its faulthandler writes to."""


def cores_of(rank: int, size: int, cores: Sequence[int]) -> tuple[int, ...]:
    """A rank's part of the engine's cores; all of them where there are fewer than ranks."""
    if len(cores) < size:
        return tuple(cores)
    share = len(cores) // size
    return tuple(cores[rank * share : (rank + 1) * share])


class Ranks:
    """Ranks 1 .. size-1 of an engine whose lead is this process."""

    def __init__(self, model_path: Path, options: WorkerOptions, size: int, log_level: str = "info") -> None:
        """Starts all of them; they load while the lead loads. Raises ConfigError without shared memory."""
        self.size = size
        self._codec_out, self._codec_in = to_rank(), from_rank()
        self._ranks: list[_Rank] = []
        self._memory = SharedMemory.create(exchange_bytes(size), "exchange")
        self.exchange = Exchange(self._memory, 0, size)
        try:
            for rank in range(1, size):
                self._ranks.append(_spawn(rank))
                start = RankStart(
                    model_path=str(model_path),
                    options=options,
                    rank=rank,
                    size=size,
                    cores=cores_of(rank, size, options.cores),
                    log_level=log_level,
                )
                self._send(self._ranks[-1], start, self._memory)
        except BaseException:
            self.close()
            raise
        self._memory.close()

    def wait_loaded(self) -> None:
        """Until every rank has its weights. Raises EngineError with the traceback of one that fails."""
        for rank in self._ranks:
            self._expect(rank, RankLoaded)

    def allocate(self, pages: int) -> None:
        """Tell every rank the size of its pool; they touch the memory while the lead touches its own."""
        for rank in self._ranks:
            self._send(rank, RankAllocate(pages=pages))

    def pools(self) -> list[SharedMemory]:
        """Their KV pools, mapped here, in the order of ranks."""
        mapped: list[SharedMemory] = []
        for rank in self._ranks:
            pool, descriptors = self._expect(rank, RankPool)
            mapped.append(SharedMemory(descriptors[0], pool.nbytes))
            rank.control.setblocking(False)
        return mapped

    def descriptors(self) -> list[int]:
        """Readable where a rank has something to say, or is gone."""
        return [rank.control.fileno() for rank in self._ranks]

    def pids(self) -> list[int]:
        """Process ids, in the order of ranks."""
        return [rank.process.pid for rank in self._ranks]

    def check(self) -> None:
        """Raises EngineError where a rank has failed or is gone."""
        for rank in self._ranks:
            with contextlib.suppress(BlockingIOError):
                raise self._last_words(rank, *self._receive(rank))

    def stacks(self) -> str:
        """Where each rank is: its process's state, how far it came, and its stack if it can still write one."""
        for rank in self._ranks:
            with contextlib.suppress(ProcessLookupError):
                rank.process.send_signal(signal.SIGUSR1)
        progress, parts = self.exchange.progress(), []
        for rank in self._ranks:
            text = _read_stack(rank.stacks) or "  (no stack: it does not answer signals)"
            state = _state(rank.process.pid)
            parts.append(f"rank {rank.number} ({state}) entered {progress[rank.number]} barriers:\n{text}")
        return f"the lead entered {progress[0]} barriers\n" + "\n".join(parts)

    def close(self) -> None:
        """End them all, whatever they do. Idempotent."""
        self.exchange.give_up()
        self._memory.close()
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            rank.control.close()
        end = time.monotonic() + EXIT_S
        for rank in ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.process.wait(max(0.0, end - time.monotonic()))
            rank.process.kill()
            rank.process.wait()
            os.close(rank.stacks)

    def _send(self, rank: _Rank, message: ToRank, *regions: SharedMemory) -> None:
        try:
            send_with(rank.control, self._codec_out.encode(message), regions)
        except OSError as error:
            raise self._last_words(rank, *self._receive(rank)) from error

    def _expect(self, rank: _Rank, kind: type[M]) -> tuple[M, list[int]]:
        """The rank's next message, which must be of that kind."""
        rank.control.settimeout(LOAD_S)
        try:
            message, descriptors = self._receive(rank)
        except TimeoutError as error:
            raise EngineError(f"rank {rank.number} did not start within {LOAD_S:.0f} s") from error
        if not isinstance(message, kind):
            raise self._last_words(rank, message, descriptors)
        return message, descriptors

    def _receive(self, rank: _Rank) -> tuple[FromRank | None, list[int]]:
        try:
            frame, descriptors = receive_with(rank.control, MAX_MESSAGE)
        except ConnectionError:
            return None, []
        return (self._codec_in.decode(frame) if frame else None), descriptors

    def _last_words(self, rank: _Rank, message: FromRank | None, descriptors: Sequence[int]) -> EngineError:
        for descriptor in descriptors:
            os.close(descriptor)
        if isinstance(message, RankFailed):
            return EngineError(f"rank {rank.number} died:\n{message.traceback}")
        if message is not None:
            return EngineError(f"rank {rank.number} said {type(message).__name__} out of turn")
        try:
            code = rank.process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            return EngineError(f"rank {rank.number} closed its socket")
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return EngineError(f"rank {rank.number} (process {rank.process.pid}) {how}")


def _spawn(number: int) -> _Rank:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    given = ("--control", str(there.fileno()), "--stacks", str(writer), "--parent", str(os.getpid()))
    with there:
        process = subprocess.Popen([*COMMAND, *given], stdin=subprocess.DEVNULL, pass_fds=(there.fileno(), writer))
    os.close(writer)
    return _Rank(number, process, here, reader)


def _read_stack(descriptor: int) -> str:
    """What a rank's faulthandler writes, until it has been silent for a while."""
    found = b""
    end = time.monotonic() + STACK_S
    while (left := end - time.monotonic()) > 0 and select.select([descriptor], [], [], left)[0]:
        data = os.read(descriptor, 65536)
        if not data:
            break
        found += data
        end = min(end, time.monotonic() + STACK_S / 10)
    return found.decode(errors="replace").rstrip()


def _state(pid: int) -> str:
    """By /proc/PID/status (proc(5)), such as `T (stopped)`."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("State:"):
                return line.removeprefix("State:").strip()
    return "gone"
