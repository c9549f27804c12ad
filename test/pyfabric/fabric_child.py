"""The other process of the two-process tests: fabric_child.py receiver|sender PROVIDER [big]. JSON lines."""

import hashlib
import json
import sys
from typing import Any

import numpy as np
from fabric_kit import Shape, Side, lane, noise, poisoned, program, register

from pyfabric import Engine, PeerReady, ProgramDone, ProgramFailed, RemoteRegion, SlotComplete

SHAPE = Shape(layers=4, pages=256, page_bytes=16384, nbytes=16384)
# Writes of 1 MiB: a process stopped at any moment leaves one half sent.
BIG = Shape(layers=2, pages=16, page_bytes=1 << 20, nbytes=1 << 20)
SEED = 11


def order(shape: Shape = SHAPE) -> list[int]:
    return [int(page) for page in np.random.default_rng(SEED).permutation(shape.pages)]


def say(**fields: Any) -> None:  # noqa: ANN401
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def hear() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    message: dict[str, Any] = json.loads(line)
    return message


def receive(provider: str) -> None:
    """Counts one whole transfer and reports the digest of the pool."""
    pool = poisoned(SHAPE.total)
    with Engine(provider=provider) as engine:
        region = register(engine, pool)
        engine.expect(0, SHAPE.layers * SHAPE.pages)
        engine.start()
        grant = region.grant("parent")
        say(address=engine.address.hex(), base=grant.base, key=grant.key, nbytes=grant.nbytes)
        Side(engine).wait(SlotComplete, seconds=60)
        say(digest=hashlib.sha256(pool).hexdigest())
        hear()


def send(provider: str, shape: Shape) -> None:
    """Sends the whole pool over and over, until the parent ends it or a program fails."""
    data = noise(shape.total)
    with Engine(provider=provider, post_deadline_s=5.0) as engine:
        side = Side(engine)
        region = register(engine, data)
        engine.start()
        say(address=engine.address.hex())
        target = hear()
        peer = engine.connect(bytes.fromhex(target["address"]))
        engine.warm(peer)
        side.wait(PeerReady)
        counter = engine.counter()
        counter.add(shape.layers)
        remote = RemoteRegion(target["base"], target["key"], target["nbytes"])
        whole = program(counter, shape, 0, lane(shape, region, peer, remote, order(shape), order(shape)))
        say(sending=True)
        while not any(isinstance(event, ProgramFailed) for event in side.seen):
            side.seen.clear()
            engine.arm(whole)
            while not any(isinstance(event, ProgramDone | ProgramFailed) for event in side.seen):
                side.settle(0.001)
        say(failed=[str(event) for event in side.seen])
        hear()


if __name__ == "__main__":
    if sys.argv[1] == "receiver":
        receive(sys.argv[2])
    else:
        send(sys.argv[2], BIG if "big" in sys.argv else SHAPE)
