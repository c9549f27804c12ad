"""After a transfer every destination page equals its source page, and no other byte of the pool has changed."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.core.layout import ShardLayout
from sglang.srt.core.ports import LayerWrites
from sglang.srt.managers.request import Request
from support.fabric_sim import FabricSim
from support.sim import LAYERS, VOCABULARY, Sim, expected_tokens


@contextmanager
def opened(kind: str, seed: int, page_size: int) -> Iterator[Sim]:
    if kind == "loopback":
        yield Sim(seed, page_size=page_size)
        return
    sim = FabricSim(seed, kind, page_size=page_size)
    try:
        yield sim
    finally:
        sim.close()


class Witness:
    """Records what the prefill engine was told to write, and looks at the pools at the moment a transfer is READY."""

    def __init__(self, sim: Sim, source: str, destination: str) -> None:
        self.source, self.destination = sim.engines[source], sim.engines[destination]
        self.written: dict[int, int] = {}
        """Destination page -> source page, of the transfer under way."""
        self.before = bytes(self.destination.worker.memory)
        self.transfers = 0
        messenger = self.source.worker.messenger
        assert messenger is not None
        self._arm, messenger.arm = messenger.arm, self._record  # type: ignore[method-assign]
        scheduler = self.destination.scheduler
        self._arrived, scheduler.arrived = scheduler.arrived, self._look  # type: ignore[method-assign]

    def _record(self, writes: LayerWrites) -> int:
        for copies in writes.copies:
            for page, source in zip(copies.destination_pages, copies.source_pages, strict=True):
                assert page not in self.written, "a page was written twice"
                self.written[page] = source
        return self._arm(writes)

    def _look(self, request: Request) -> None:
        layout: ShardLayout = self.destination.worker.layout
        size = layout.page_bytes(0)
        expected = bytearray(self.before)
        for layer in range(LAYERS):
            for page, source in self.written.items():
                at = self.source.worker.layout.layer_offset(0, layer) + source * size
                to = layout.layer_offset(0, layer) + page * size
                expected[to : to + size] = self.source.worker.memory[at : at + size]
        assert bytes(self.destination.worker.memory) == bytes(expected)
        self.transfers += 1
        self._arrived(request)

    def next(self) -> None:
        """The transfer is over and the engines are quiet: what is in the pool now must survive the next one."""
        self.written.clear()
        self.before = bytes(self.destination.worker.memory)


@pytest.mark.parametrize("kind", ["loopback", "tcp", "shm"])
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 1 << 30), page_size=st.sampled_from([1, 4, 16]))
def test_pages_are_exact_with_partial_last_pages_and_prefix_skips(kind: str, seed: int, page_size: int) -> None:
    """Both pools start as random bytes: a byte that is touched without reason shows."""
    rng = random.Random(seed)
    with opened(kind, seed, page_size) as sim:
        sim.add("p0", "prefill", pages=400 // page_size)
        sim.add("d0", "decode", pages=400 // page_size, peers=("p0",))
        witness = Witness(sim, "p0", "d0")
        head = [rng.randrange(VOCABULARY) for _ in range(rng.randint(0, 50))]
        for number in range(4):
            # Shared heads make prefix hits on the decode side; lengths around page ends make partial last pages.
            prompt = head + [rng.randrange(VOCABULARY) for _ in range(rng.randint(page_size + 1, 40))]
            sim.ask("d0", str(number), prompt, 3)
            sim.run(200_000)
            assert sim.answers[str(number)].tokens == expected_tokens(prompt, 3)
            witness.next()
        assert witness.transfers == 4
        sim.check_empty()
