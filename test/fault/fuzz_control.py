"""Coverage-guided fuzz of the control plane: frames that follow the branches of both roles.

pip install atheris; PYTHONPATH=python:test python test/fault/fuzz_control.py -runs=1000000

Each input is one frame, without the checksum that real links have: its first byte says from whom to whom, the rest is
decoded and obeyed in the simulated cluster while requests are served. Seeds are the frames of an honest conversation.
Every 2,000 inputs the storm ends: every request must end and every page, slot and program be back; then all begins
anew, from the same seed, so that recorded numbers still mean something. A crash is an exception that leaves a loop.
"""

import logging
import random
import resource
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

import atheris
import msgspec

# The loader of an editable install cannot be instrumented; PYTHONPATH finds the same files.
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]

with atheris.instrument_imports(include=["sglang.srt.disaggregation", "sglang.srt.messages", "sglang.srt.managers"]):
    from sglang.srt.disaggregation.roles.settings import RoleSettings
    from sglang.srt.errors import WireError
    from sglang.srt.ipc.zmq_link import CONTROL_LIMIT
    from sglang.srt.messages.codec import Codec
    from sglang.srt.messages.frontend import Abort, Shutdown
    from sglang.srt.messages.wire import ToDecode, ToPrefill
    from support.sim import VOCABULARY, Sim

ROUND = 2_000
WAYS = (("p0", "d0"), ("d0", "p0"), ("p0", "stranger"))
"""(to, from)."""
CODECS = {"p0": Codec(ToPrefill, limit=CONTROL_LIMIT), "d0": Codec(ToDecode, limit=CONTROL_LIMIT)}


def cluster(turns: int = 40) -> Sim:
    """One prefill and one decode engine; acquainted after some turns."""
    sim = Sim(1, settings=RoleSettings(local_tokens=0, fallback_local=True, transfer_floor_s=2.0))
    sim.add("p0", "prefill", pages=96)
    sim.add("d0", "decode", pages=96, peers=("p0",))
    for _ in range(turns):
        sim.turn()
    return sim


class Storm:
    """What lives from one input to the next."""

    def __init__(self) -> None:
        self.count = self.malformed = self.obeyed = self.served = 0
        self.started = time.monotonic()
        self._begin()

    def _begin(self) -> None:
        self.sim = cluster()
        self.asked = 0

    def one(self, data: bytes) -> None:
        """One input."""
        self.count += 1
        if data:
            self._deliver(WAYS[data[0] % len(WAYS)], data[1:])
        if len(self.sim.engines["d0"].scheduler.requests) < 3:
            prompt = [(7 * self.asked + i) % VOCABULARY for i in range(5 + self.asked % 40)]
            self.sim.ask("d0", str(self.asked), prompt, 2)
            self.asked += 1
        if self.count % 4 == 0:
            self.sim.turn()
        if self.count % ROUND == 0:
            self._settle()

    def _deliver(self, way: tuple[str, str], frame: bytes) -> None:
        try:
            message = CODECS[way[0]].decode(frame)
        except WireError:
            self.malformed += 1
            return
        self.obeyed += 1
        self.sim.mail.setdefault(way, deque()).append(message)
        self.sim.engines[way[0]].scheduler.role.poll()  # at once, so that the input gets the credit for its branches

    def _settle(self) -> None:
        for _ in range(200):
            self.sim.turn()
            self.sim.clock.advance(0.05)
        self.sim.run(100_000)
        self.sim.check_empty()
        self.served += self.asked
        self._begin()
        mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        seconds = time.monotonic() - self.started
        sys.stderr.write(
            f"{self.count} frames in {seconds:.0f} s: {self.malformed} malformed, {self.obeyed} obeyed, "
            f"{self.served} requests ended; at most {mib} MiB\n"
        )


def seeds(folder: Path) -> None:
    """The frames of an honest conversation, farewell included, one file each."""
    sim = cluster(0)
    kept: dict[tuple[str, str, str], bytes] = {}

    class Box(deque):  # type: ignore[type-arg]
        def __init__(self, way: int) -> None:
            super().__init__()
            self.way = way

        def append(self, message: object) -> None:
            frame = CODECS[WAYS[self.way][0]].encode(message)
            kept.setdefault((str(self.way), type(message).__name__, str(len(kept) // 40)), bytes((self.way,)) + frame)
            super().append(message)

    for way in (0, 1):
        sim.mail[WAYS[way]] = Box(way)
    for i in range(12):
        sim.ask("d0", str(i), [(i + k) % VOCABULARY for k in range(30)], 2)
    for _ in range(60):
        sim.turn()
    for rid in ("9", "10", "11"):
        sim.engines["d0"].to.append(Abort(rid=rid))
    sim.run(100_000)
    sim.engines["p0"].to.append(Shutdown(drain=True))
    while "p0" in sim.engines:
        sim.turn()
    for name, frame in enumerate(kept.values()):
        (folder / str(name)).write_bytes(frame)
        (folder / f"{name}s").write_bytes(b"\x02" + frame[1:])


def changed(rng: random.Random, value: object) -> object:
    """One leaf of a decoded message becomes another one of its kind."""
    match value:
        case bool():
            return not value
        case int():
            return rng.choice((0, 1, value - 1, value + 1, 1 << rng.randrange(63), rng.getrandbits(rng.randint(1, 64))))
        case str() | bytes():
            cut = rng.randint(0, len(value))
            return value[:cut] + value[:1] * rng.randint(0, 3) + value[cut:]
        case dict() if value:
            key = rng.choice(list(value))
            return {**value, key: changed(rng, value[key])}
        case list() if value:
            index = rng.randrange(len(value))
            kept = value[:index] + value[index + 1 :]
            return rng.choice(
                (kept, [*value, value[index]], [*value[:index], changed(rng, value[index]), *kept[index:]])
            )
    return value


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Most of the time a frame that still decodes: libFuzzer's own mutations are nearly all malformed."""
    rng = random.Random(seed)
    try:
        message = msgspec.msgpack.decode(data[2:]) if rng.random() < 0.8 else None
    except msgspec.DecodeError:
        message = None
    if message is None:
        return bytes(atheris.Mutate(data, max_size))
    for _ in range(rng.choice((1, 1, 2, 4))):
        message = changed(rng, message)
    try:
        return (data[:2] + msgspec.msgpack.encode(message))[:max_size]
    except (OverflowError, ValueError):
        return data


def main() -> None:
    """Flags are libFuzzer's."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        seeds(Path(folder))
        storm = Storm()
        atheris.Setup([*sys.argv, "-max_len=4096", folder], storm.one, custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
