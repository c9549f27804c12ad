import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fabric_kit import Side

from pyfabric import Engine, PeerReady


@dataclass(frozen=True, slots=True)
class Pair:
    """Two started engines of one process; `peer` is the receiver as the sender knows it."""

    sender: Side
    receiver: Side
    peer: int


@pytest.fixture(params=["tcp", "shm", "mapped"])
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(provider: str) -> Iterator[Pair]:
    with Engine(provider=provider) as sender, Engine(provider=provider) as receiver:
        sender.start()
        receiver.start()
        side = Side(sender)
        peer = sender.connect(receiver.address)
        sender.warm(peer)
        side.wait(PeerReady)
        yield Pair(side, Side(receiver), peer)
