"""A rank that does not lead, as a process. Started by `ranks.py`, never by hand.

python -m sglang.srt.model_executor.tp.rank_process --control FD --stacks FD --parent PID
"""

import argparse
import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from sglang.srt.config.model import read_model_spec
from sglang.srt.distributed import _shm
from sglang.srt.distributed.groups import ParallelGroup
from sglang.srt.kv_pool.shareable import SharedMemory, receive_with, send_with, shared_pool
from sglang.srt.model_executor.build import load_rank, make_follower, make_pool
from sglang.srt.model_executor.tp.exchange import Exchange, exchange_bytes
from sglang.srt.model_executor.tp.messages import (
    MAX_MESSAGE,
    MAX_TRACEBACK,
    FromRank,
    PlanCodec,
    RankAllocate,
    RankFailed,
    RankLoaded,
    RankPool,
    RankStart,
    ToRank,
    from_rank,
    to_rank,
)
from sglang.srt.observability.logs import setup_logging

PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>."""
LOG = logging.getLogger(__name__)


class LeadGoneError(Exception):
    """The lead closed the socket: there is nobody left to work for."""


class Control:
    """The socket to the lead."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._incoming, self._outgoing = to_rank(), from_rank()

    def receive(self) -> tuple[ToRank, list[int]]:
        """The lead's next message and what descriptors came with it. Raises LeadGoneError."""
        frame, descriptors = receive_with(self._socket, MAX_MESSAGE)
        if not frame:
            raise LeadGoneError
        return self._incoming.decode(frame), descriptors

    def send(self, message: FromRank, *regions: SharedMemory) -> None:
        """Raises LeadGoneError."""
        try:
            send_with(self._socket, self._outgoing.encode(message), regions)
        except OSError as error:
            raise LeadGoneError from error


def die_with(parent: int) -> None:
    """SIGKILL for this process when its parent dies, which may be in the middle of a collective."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def work(control: Control, start: RankStart, exchange: Exchange) -> None:
    """Load, allocate, then run plans until the lead closes."""
    path = Path(start.model_path)
    group = ParallelGroup(start.rank, start.size)
    loaded = load_rank(path, read_model_spec(path), start.options, group, exchange.collectives)
    control.send(RankLoaded())
    order, _ = control.receive()
    assert isinstance(order, RankAllocate)
    memory: list[SharedMemory] = []

    def allocate(nbytes: int, progress: object) -> SharedMemory:
        memory.append(shared_pool(nbytes, lambda done: None))
        return memory[0]

    runner = make_follower(loaded, make_pool(loaded, order.pages, allocate))
    control.send(RankPool(nbytes=memory[0].nbytes), memory[0])
    memory[0].close()
    codec = PlanCodec()
    while (data := exchange.next_plan()) is not None:
        runner.execute(codec.decode(data))


def run(control: Control) -> int:
    """The whole life of the rank. Whatever goes wrong in it is told to the lead, which alone can end the engine."""
    order, descriptors = control.receive()
    assert isinstance(order, RankStart)
    setup_logging(f"rank {order.rank}", order.log_level)
    if order.cores:
        os.sched_setaffinity(0, order.cores)
    torch.set_num_threads(order.options.threads)
    memory = SharedMemory(descriptors[0], exchange_bytes(order.size))
    memory.close()
    exchange = Exchange(memory, order.rank, order.size)
    try:
        work(control, order, exchange)
    except (_shm.Aborted, LeadGoneError):
        LOG.debug("the lead gave up")
    except BaseException:  # noqa: BLE001
        control.send(RankFailed(traceback=traceback.format_exc()[-MAX_TRACEBACK:]))
        exchange.give_up()
        return 1
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 where the lead ended it, 1 after a failure of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--stacks", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args(argv)
    die_with(arguments.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=arguments.stacks, all_threads=True)
    try:
        return run(Control(arguments.control))
    except LeadGoneError:
        return 0


if __name__ == "__main__":
    # Nothing that a library left running may keep a rank alive.
    code = main()
    sys.stderr.flush()
    os._exit(code)
