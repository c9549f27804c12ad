"""The other process of the two-process tests: fabric_child.py receiver|sender PROVIDER. One JSON line each way."""

import hashlib
import json
import sys
from typing import Any

import numpy as np
from fabric_kit import Shape, Side, lane, memory, noise, poisoned, program

from pyfabric import Engine, PeerReady, ProgramDone, ProgramFailed, RemoteRegion, SlotComplete

SHAPE = Shape(layers=4, pages=256, page_bytes=16384, nbytes=16384)
SEED = 11


def order() -> list[int]:
    return [int(page) for page in np.random.default_rng(SEED).permutation(SHAPE.pages)]


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
        region = engine.register(*memory(pool))
        engine.expect(0, SHAPE.layers * SHAPE.pages)
        engine.start()
        grant = region.grant("parent")
        say(address=engine.address.hex(), base=grant.base, key=grant.key, nbytes=grant.nbytes)
        Side(engine).wait(SlotComplete, seconds=60)
        say(digest=hashlib.sha256(pool).hexdigest())
        hear()


def send(provider: str) -> None:
    """Sends the whole pool over and over, until the parent ends it or a program fails."""
    data = noise(SHAPE.total)
    with Engine(provider=provider, post_deadline_s=5.0) as engine:
        side = Side(engine)
        region = engine.register(*memory(data))
        engine.start()
        target = hear()
        peer = engine.connect(bytes.fromhex(target["address"]))
        engine.warm(peer)
        side.wait(PeerReady)
        counter = engine.counter()
        counter.add(SHAPE.layers)
        remote = RemoteRegion(target["base"], target["key"], target["nbytes"])
        whole = program(counter, SHAPE, 0, lane(SHAPE, region, peer, remote, order(), order()))
        say(sending=True)
        while not any(isinstance(event, ProgramFailed) for event in side.seen):
            side.seen.clear()
            engine.arm(whole)
            while not any(isinstance(event, ProgramDone | ProgramFailed) for event in side.seen):
                side.settle(0.001)
        say(failed=[str(event) for event in side.seen])
        hear()


if __name__ == "__main__":
    {"receiver": receive, "sender": send}[sys.argv[1]](sys.argv[2])
