"""What messenger.py compares: a pyfabric engine here and one in a child process, and the raw loop of native/raw.cpp."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

import numpy as np

import pyfabric
from messenger_jobs import LAYERS, POOL_BYTES, Job, Memory, Pool, allocate

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "benchmark"
WAIT_S = 60.0


class Contender(Protocol):
    """One side of a comparison: runs a job and says how long it took."""

    def seconds(self) -> float: ...


def build_raw() -> Path:
    """Compiles native/ when it has changed."""
    for command in (
        ["cmake", "-S", str(HERE / "native"), "-B", str(BUILD), "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", str(BUILD)],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return BUILD / "raw"


class Child:
    """A process that is told things on stdin and answers on stdout, a line each."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )

    def hear(self) -> str:
        line = _pipe(self.process.stdout).readline()
        if not line:
            raise RuntimeError(f"{self.process.args!r} ended with {self.process.wait()}")
        return line.strip()

    def say(self, text: str) -> None:
        pipe = _pipe(self.process.stdin)
        pipe.write(text + "\n")
        pipe.flush()

    def close(self) -> None:
        _pipe(self.process.stdin).close()
        self.process.wait(20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise RuntimeError("the child has no pipe")
    return pipe


class Raw(Child):
    """native/raw.cpp over one provider, or its copy loops ("copy")."""

    def __init__(self, binary: Path, provider: str, memory: Memory) -> None:
        # The very library that pyfabric uses.
        preload = {"LD_PRELOAD": str(pyfabric.LIBRARY.path)}
        super().__init__([str(binary), provider, memory, str(POOL_BYTES)], preload)
        if self.hear() != "ready":
            raise RuntimeError(f"the raw loop over {provider} did not start")

    def run(self, script: str) -> float:
        self.say(script)
        return int(self.hear()) / 1e9


class Foreign(Child):
    """NIXL or Mooncake, under the Python that they are installed for. Prints of theirs are passed over.

    Stopped between its turns: progress threads of NIXL would else take a core from whoever is measured.
    """

    def __init__(self, python: Path, kind: str, memory: Memory, environment: dict[str, str]) -> None:
        super().__init__([str(python), str(HERE / "messenger_others.py"), kind, memory], environment)
        while self.hear() != "ready":
            pass
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def run(self, script: str) -> float:
        self._signal(signal.SIGCONT)
        self.say(script)
        while not (answer := self.hear()).isdecimal():
            pass
        self._signal(signal.SIGSTOP)
        return int(answer) / 1e9

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self.process.wait(20)


class Script:
    """A job of a raw loop or of another library, as a contender."""

    def __init__(self, raw: Raw | Foreign, script: str) -> None:
        self._raw, self._script = raw, script

    def seconds(self) -> float:
        return self._raw.run(self._script)


class Pair:
    """A sending engine in this process, a receiving one in a child."""

    def __init__(self, provider: str, memory: Memory, *, spin: bool = False) -> None:
        self.pool: Pool = allocate(memory)
        self.engine = pyfabric.Engine(provider=provider, spin=spin)
        self.region = _register(self.engine, self.pool)
        self.engine.start()
        self.child = Child([sys.executable, __file__, provider, memory])
        hello = json.loads(self.child.hear())
        self.peer = self.engine.connect(bytes.fromhex(hello["address"]))
        self.remote = pyfabric.RemoteRegion(hello["base"], hello["key"], hello["nbytes"])
        self.counter = self.engine.counter()
        self.engine.warm(self.peer)
        self.wait(pyfabric.PeerReady)

    def wait(self, kind: type[Any]) -> Any:  # noqa: ANN401
        limit = time.monotonic() + WAIT_S
        while time.monotonic() < limit:
            select.select([self.engine], [], [], 1.0)
            for event in self.engine.poll():
                if isinstance(event, pyfabric.ProgramFailed | pyfabric.PeerLost):
                    raise TypeError(str(event))
                if isinstance(event, kind):
                    return event
        raise TimeoutError(f"no {kind.__name__} within {WAIT_S} s")

    def lane(
        self, job: Job, layers: int = LAYERS, nbytes: int | None = None, layer_bytes: int | None = None
    ) -> pyfabric.Lane:
        offsets = np.arange(layers, dtype=np.uint64) * np.uint64(
            job.layer_bytes if layer_bytes is None else layer_bytes
        )
        return pyfabric.Lane(
            source=self.region,
            peer=self.peer,
            destination=self.remote,
            source_layers=offsets,
            destination_layers=offsets,
            source_page_bytes=job.page_bytes,
            destination_page_bytes=job.page_bytes,
            source_offset=0,
            destination_offset=0,
            nbytes=nbytes or job.page_bytes,
            source_pages=job.source,
            destination_pages=job.destination,
        )

    def expect(self, weight: int) -> None:
        self.child.say(str(weight))
        self.child.hear()

    def completed_ns(self) -> int:
        """When the receiver had counted all of it; CLOCK_MONOTONIC is one clock for both processes."""
        return int(self.child.hear())

    def close(self) -> None:
        self.child.close()
        self.engine.close()


class Transfer:
    """A job of a pyfabric pair, as a contender: from arm() until both sides know that it is complete."""

    def __init__(self, pair: Pair, job: Job) -> None:
        self._pair, self._weight = pair, LAYERS * len(job.source)
        thresholds = np.zeros(LAYERS, np.uint64)
        self._program = pyfabric.Program(pair.counter, thresholds, 0, (pair.lane(job),))

    def seconds(self) -> float:
        self._pair.expect(self._weight)
        start = time.monotonic_ns()
        self._pair.engine.arm(self._program)
        done: pyfabric.ProgramDone = self._pair.wait(pyfabric.ProgramDone)
        return (max(time.monotonic_ns(), self._pair.completed_ns(), int(done.posted_ns[-1])) - start) / 1e9


class NumpyCopy:
    """numpy's copy of the same pages between two shared pools, page by page as an index says."""

    def __init__(self, memory: Memory, job: Job) -> None:
        self._pools = (allocate(memory), allocate(memory))
        self._job = job

    def seconds(self) -> float:
        job, (source, target) = self._job, (pool.array for pool in self._pools)
        start = time.monotonic_ns()
        for layer in range(LAYERS):
            here = slice(layer * job.layer_bytes, (layer + 1) * job.layer_bytes)
            pages = (array[here].reshape(-1, job.page_bytes) for array in (source, target))
            a, b = pages
            b[job.destination] = a[job.source]
        return (time.monotonic_ns() - start) / 1e9

    def close(self) -> None:
        """Gives the pools back."""
        del self._pools


def _register(engine: pyfabric.Engine, pool: Pool) -> pyfabric.MemoryRegion:
    return engine.register(pool.address, pool.array.nbytes, fd=pool.fd)


def receive(provider: str, memory: Memory) -> None:
    """The child: for each weight told, counts to it and says when that was."""
    pool = allocate(memory)
    with pyfabric.Engine(provider=provider) as engine:
        region = _register(engine, pool)
        engine.start()
        grant = region.grant("sender")
        hello = {"address": engine.address.hex(), "base": grant.base, "key": grant.key, "nbytes": grant.nbytes}
        sys.stdout.write(json.dumps(hello) + "\n")
        sys.stdout.flush()
        for line in sys.stdin:
            engine.expect(0, int(line))
            sys.stdout.write("expecting\n")
            sys.stdout.flush()
            events: list[pyfabric.Event] = []
            while not events:
                select.select([engine], [], [], 1.0)
                events = [e for e in engine.poll() if isinstance(e, pyfabric.SlotComplete)]
            (done,) = events
            engine.forget(0)
            sys.stdout.write(f"{done.completed_ns if isinstance(done, pyfabric.SlotComplete) else 0}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    kind: Any = sys.argv[2]
    receive(sys.argv[1], kind)
