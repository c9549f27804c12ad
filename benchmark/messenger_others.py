"""NIXL and Mooncake as contenders of messenger.py. Runs under the Python that they are installed for; we are not.

    make contenders                                     # that Python: build/contenders
    python messenger_others.py nixl|nixl-thread|mooncake MEMORY

The words are those of native/raw.cpp: jobs on stdin (FORM LAYER_BYTES LAYERS WRITES, extents, -1), nanoseconds on
stdout. Descriptor lists are built before the clock starts, which favours NIXL and Mooncake: pyfabric's arm() is inside
it. The clock runs until both sides know that all has arrived; Mooncake does not tell its target, so there until the
sender knows.
"""

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from messenger_jobs import Memory, Pool, allocate

BATCH = 1000
"""Extents of one Mooncake call: beyond about a thousand its lanes overflow."""
Extents = NDArray[np.uint64]
"""[n, 3]: source address, destination address, bytes."""


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def hear(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


class Sender(Protocol):
    """One library's sending side, its target in a child process."""

    def prepare(self, extents: Extents) -> Any: ...  # noqa: ANN401 - the library's own handle
    def seconds_ns(self, prepared: Any) -> int: ...  # noqa: ANN401


def start_target(kind: str, memory: str) -> tuple["subprocess.Popen[str]", dict[str, Any]]:
    command = [sys.executable, __file__, kind, memory, "target"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for line in iter(lambda: hear(process), ""):  # the libraries print what they like
        if line.startswith("{"):
            return process, json.loads(line)
    raise RuntimeError(f"the target of {kind} ended with {process.wait()}")


def nixl_agent(name: str, *, thread: bool) -> Any:  # noqa: ANN401
    api = importlib.import_module("nixl._api")
    return api.nixl_agent(name, api.nixl_agent_config(enable_prog_thread=thread, backends=["UCX"]))


class Nixl:
    def __init__(self, kind: str, memory: Memory, pool: Pool) -> None:
        self.agent = nixl_agent("sender", thread=kind == "nixl-thread")
        self.agent.register_memory([(pool.address, pool.array.nbytes, 0, "")], "DRAM")
        self.target, hello = start_target(kind, memory)
        self.base = int(hello["address"])
        self.peer = self.agent.add_remote_agent(bytes.fromhex(hello["metadata"]))
        self.peer = self.peer.decode() if isinstance(self.peer, bytes) else self.peer

    def prepare(self, extents: Extents) -> Any:  # noqa: ANN401
        def side(column: int) -> list[tuple[int, int, int]]:
            return [(int(row[column]), int(row[2]), 0) for row in extents]

        local = self.agent.get_xfer_descs(side(0), "DRAM")
        remote = self.agent.get_xfer_descs(side(1), "DRAM")
        return self.agent.initialize_xfer("WRITE", local, remote, self.peer, b"done")

    def seconds_ns(self, prepared: Any) -> int:  # noqa: ANN401
        tell(self.target, "wait")
        start = time.monotonic_ns()
        state = self.agent.transfer(prepared)
        while state == "PROC":
            state = self.agent.check_xfer_state(prepared)
        if state != "DONE":
            raise RuntimeError(f"NIXL: the transfer ended as {state}")
        return max(time.monotonic_ns(), int(hear(self.target))) - start


def nixl_target(kind: str, pool: Pool) -> None:
    agent = nixl_agent("target", thread=kind == "nixl-thread")
    agent.register_memory([(pool.address, pool.array.nbytes, 0, "")], "DRAM")
    say(json.dumps({"address": pool.address, "metadata": agent.get_agent_metadata().hex()}))
    for _ in sys.stdin:
        while not agent.get_new_notifs():
            pass
        say(str(time.monotonic_ns()))


def mooncake_engine(pool: Pool) -> Any:  # noqa: ANN401
    engine = importlib.import_module("mooncake.engine").TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
        raise RuntimeError("Mooncake: initialize failed")
    if engine.register_memory(pool.address, pool.array.nbytes) != 0:
        raise RuntimeError("Mooncake: register_memory failed")
    return engine


class Mooncake:
    def __init__(self, kind: str, memory: Memory, pool: Pool) -> None:
        self.engine = mooncake_engine(pool)
        self.target, hello = start_target(kind, memory)
        self.base, self.peer = int(hello["address"]), f"127.0.0.1:{hello['port']}"

    def prepare(self, extents: Extents) -> Any:  # noqa: ANN401
        parts = [extents[i : i + BATCH] for i in range(0, len(extents), BATCH)]
        return [tuple(part[:, column].tolist() for column in range(3)) for part in parts]

    def seconds_ns(self, prepared: Any) -> int:  # noqa: ANN401
        start = time.monotonic_ns()
        for sources, destinations, sizes in prepared:
            if self.engine.batch_transfer_sync_write(self.peer, sources, destinations, sizes) != 0:
                raise RuntimeError("Mooncake: a transfer failed")
        return time.monotonic_ns() - start


def mooncake_target(pool: Pool) -> None:
    engine = mooncake_engine(pool)
    say(json.dumps({"address": pool.address, "port": engine.get_rpc_port()}))
    for _ in sys.stdin:
        pass


def jobs(source: int, destination: int) -> Iterator[Extents]:
    """The jobs on stdin, as addresses."""
    for head in sys.stdin:
        if not head.strip():
            continue
        _, layer_bytes, layers, writes = head.split()
        rows = [int(word) for _ in range(int(writes)) for word in sys.stdin.readline().split()[:-1]]
        layer = np.array(rows, np.uint64).reshape(-1, 3)
        step = np.arange(int(layers), dtype=np.uint64)[:, None] * np.uint64(layer_bytes)
        starts = (layer[:, 0][None] + np.uint64(source), layer[:, 1][None] + np.uint64(destination))
        addresses = [(start + step).ravel() for start in starts]
        yield np.stack([*addresses, np.tile(layer[:, 2], int(layers))], axis=1)


def send(kind: str, memory: Memory) -> None:
    pool = allocate(memory)
    sender: Nixl | Mooncake = (Mooncake if kind == "mooncake" else Nixl)(kind, memory, pool)
    kept: dict[bytes, Any] = {}
    say("ready")
    for extents in jobs(pool.address, sender.base):
        name = extents.tobytes()
        if name not in kept:
            kept = {name: sender.prepare(extents)}
        say(str(sender.seconds_ns(kept[name])))


def main() -> None:
    kind, memory, *role = sys.argv[1:]
    chosen: Any = memory
    if not role:
        send(kind, chosen)
    elif kind == "mooncake":
        mooncake_target(allocate(chosen))
    else:
        nixl_target(kind, allocate(chosen))


if __name__ == "__main__":
    main()
