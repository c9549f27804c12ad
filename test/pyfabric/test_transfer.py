"""Bytes, weights and order of paged writes between two engines of one process."""

import select
import sys
import time

import numpy as np
import pytest
from fabric_kit import POISON, Shape, Side, expected, lane, noise, poisoned, program, register, wait_slot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import Pair
from pyfabric import Engine, ProgramDone, SlotComplete


def send(
    pair: Pair, shape: Shape, take: list[int], put: list[int], slot: int = 5
) -> tuple[np.ndarray, np.ndarray, ProgramDone]:
    """Source, destination and the terminal event of one program whose counter is already at the last layer."""
    source, destination = noise(shape.total), poisoned(shape.total)
    region = register(pair.sender.engine, source)
    target = register(pair.receiver.engine, destination)
    before = sum(isinstance(e, ProgramDone) for e in pair.sender.seen)
    pair.receiver.seen.clear()
    pair.receiver.engine.expect(slot, len(take) * shape.layers)
    counter = pair.sender.engine.counter()
    counter.add(shape.layers)
    pair.sender.engine.arm(program(counter, shape, slot, lane(shape, region, pair.peer, target.grant("s"), take, put)))
    done = pair.sender.wait(ProgramDone, count=before + 1)[before]
    wait_slot(pair.receiver, slot)
    assert pair.receiver.engine.forget(slot) == len(take) * shape.layers
    region.close()
    target.close()
    assert isinstance(done, ProgramDone)
    return source, destination, done


@st.composite
def transfers(draw: st.DrawFn) -> tuple[Shape, list[int], list[int]]:
    pages = draw(st.integers(1, 24))
    page_bytes = draw(st.sampled_from([64, 1024, 4096, 12288]))
    nbytes = draw(st.one_of(st.just(page_bytes), st.integers(1, page_bytes)))
    slack = page_bytes - nbytes
    offsets = draw(st.integers(0, slack)), draw(st.integers(0, slack))
    shape = Shape(draw(st.integers(1, 4)), pages, page_bytes, nbytes, *offsets)
    count = draw(st.integers(1, pages))
    start = draw(st.integers(0, pages - count))
    run = list(range(start, start + count))
    take = draw(st.one_of(st.just(run), st.permutations(range(pages)).map(lambda p: list(p)[:count])))
    put = draw(st.one_of(st.just(run), st.permutations(range(pages)).map(lambda p: list(p)[:count])))
    return shape, take, put


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(transfers())
def test_random_page_lists_are_byte_exact(pair: Pair, transfer: tuple[Shape, list[int], list[int]]) -> None:
    shape, take, put = transfer
    source, destination, done = send(pair, shape, take, put)
    assert np.array_equal(destination, expected(shape, source, take, put))
    assert list(done.layer_bytes) == [len(take) * shape.nbytes] * shape.layers


def test_runs_become_single_writes_with_exact_weights(pair: Pair) -> None:
    shape = Shape(layers=2, pages=32)
    before = pair.sender.engine.stats()
    send(pair, shape, list(range(8, 24)), list(range(3, 19)))
    after = pair.sender.engine.stats()
    assert after.writes_posted - before.writes_posted == shape.layers
    assert after.pages_posted - before.pages_posted == 16 * shape.layers


def test_partial_extents_are_never_merged(pair: Pair) -> None:
    shape = Shape(layers=1, pages=8, nbytes=2048)
    source, destination, _ = send(pair, shape, list(range(8)), list(range(8)))
    assert np.array_equal(destination, expected(shape, source, list(range(8)), list(range(8))))
    assert (destination.reshape(8, 4096)[:, 2048:] == POISON).all()


def test_large_pages_and_many_writes(pair: Pair) -> None:
    shape = Shape(layers=2, pages=300, page_bytes=20000, nbytes=20000)
    order = list(np.random.default_rng(3).permutation(300))
    source, destination, _ = send(pair, shape, order, order[::-1])
    assert np.array_equal(destination, expected(shape, source, order, order[::-1]))


def test_layers_follow_the_counter_in_order(pair: Pair) -> None:
    shape = Shape(layers=4, pages=4)
    source, destination = noise(shape.total), poisoned(shape.total)
    region = register(pair.sender.engine, source)
    target = register(pair.receiver.engine, destination)
    counter = pair.sender.engine.counter()
    pair.receiver.engine.expect(1, 1)
    armed = program(counter, shape, 1, lane(shape, region, pair.peer, target.grant("s"), [0, 2], [1, 3]))
    handle = pair.sender.engine.arm(armed)
    layers = destination.reshape(shape.layers, -1)
    for layer in range(shape.layers):
        pair.sender.settle(0.02)
        assert not any(isinstance(e, ProgramDone) for e in pair.sender.seen)
        assert (layers[layer:] == POISON).all(), "a layer was sent before its threshold"
        counter.add()
        while pair.sender.engine.stats().completions < layer + 2:  # one write a layer, after the warming write
            pair.sender.settle(0.001)
    (done,) = pair.sender.wait(ProgramDone)
    assert isinstance(done, ProgramDone)
    assert done.handle == handle
    assert (np.diff(done.seen_ns) > 0).all()
    assert (done.posted_ns >= done.seen_ns).all()
    assert np.array_equal(destination, expected(shape, source, [0, 2], [1, 3]))
    region.close()


def test_two_lanes_to_two_peers_share_one_program(pair: Pair, provider: str) -> None:
    shape = Shape(layers=3, pages=8)
    source, first, second = noise(shape.total), poisoned(shape.total), poisoned(shape.total)
    engine = pair.sender.engine
    region = register(engine, source)
    kept = [register(pair.receiver.engine, pool) for pool in (first, second)]
    one, two = (target.grant("s") for target in kept)
    pair.receiver.engine.expect(9, 5 * shape.layers)
    counter = engine.counter()
    other = engine.connect(pair.receiver.engine.address)
    lanes = (lane(shape, region, pair.peer, one, [0, 5], [7, 1]), lane(shape, region, other, two, [1, 2, 3], [1, 2, 3]))
    engine.arm(program(counter, shape, 9, *lanes))
    counter.add(shape.layers)
    pair.sender.wait(ProgramDone)
    wait_slot(pair.receiver, 9)
    assert np.array_equal(first, expected(shape, source, [0, 5], [7, 1]))
    assert np.array_equal(second, expected(shape, source, [1, 2, 3], [1, 2, 3]))


def test_slots_complete_once_and_late_immediates_are_strays(pair: Pair) -> None:
    shape = Shape(layers=1, pages=4)
    send(pair, shape, [0], [0], slot=7)
    receiver = pair.receiver.engine
    before = receiver.stats()
    source, destination = noise(shape.total), poisoned(shape.total)
    region = register(pair.sender.engine, source)
    kept = register(receiver, destination)
    target = kept.grant("s")
    counter = pair.sender.engine.counter()
    counter.add()
    receiver.expect(8, 2)
    for slot in (7, 8, 8, 8):
        pair.sender.engine.arm(program(counter, shape, slot, lane(shape, region, pair.peer, target, [1], [1])))
    pair.sender.wait(ProgramDone, count=5)
    while receiver.stats().immediates < before.immediates + 4:
        pair.receiver.settle(0.005)
    after = receiver.stats()
    assert after.strays - before.strays == 1
    assert after.excess - before.excess == 1
    pair.receiver.settle(0.05)
    assert [e.slot for e in pair.receiver.seen if isinstance(e, SlotComplete)] == [7, 8]
    assert receiver.forget(8) == 3
    receiver.expect(8, 1)
    assert receiver.forget(8) == 0


def test_an_immediate_that_is_counted_has_been_told_apart(pair: Pair) -> None:
    """All of these are strays. Read while they come in, the two totals are never seen to differ."""
    shape = Shape(layers=1, pages=512, page_bytes=64, nbytes=64)
    source, destination = noise(shape.total), poisoned(shape.total)
    region, kept = register(pair.sender.engine, source), register(pair.receiver.engine, destination)
    grant, counter = kept.grant("s"), pair.sender.engine.counter()
    counter.add()
    backwards = list(range(shape.pages))[::-1]
    one = lane(shape, region, pair.peer, grant, list(range(shape.pages)), backwards)
    handles = [pair.sender.engine.arm(program(counter, shape, 7, one)) for _ in range(400)]
    ended, now = 0, pair.receiver.engine.stats()
    while ended < len(handles) or now.immediates < pair.sender.engine.stats().writes_posted:
        ended += sum(isinstance(event, ProgramDone) for event in pair.sender.engine.poll())
        now = pair.receiver.engine.stats()
        assert now.strays == now.immediates


@pytest.mark.parametrize("weight_bits", [1, 2, 31])
def test_weights_are_capped_by_the_immediate(provider: str, weight_bits: int) -> None:
    options = {"provider": provider, "weight_bits": weight_bits, "slots": 2}
    with Engine(**options) as sender, Engine(**options) as receiver:
        sender.start()
        receiver.start()
        pair = Pair(Side(sender), Side(receiver), sender.connect(receiver.address))
        shape = Shape(layers=1, pages=16)
        send(pair, shape, list(range(16)), list(range(16)), slot=1)
        most = min(16, 2**weight_bits - 1)
        assert sender.stats().writes_posted == -(-16 // most)


def test_a_forgotten_slot_takes_its_unheard_completion_along(pair: Pair) -> None:
    """Else the slot's next use would take the earlier one's SlotComplete for its own."""
    shape = Shape()
    data, pool = noise(shape.total), poisoned(shape.total)
    source, target = register(pair.sender.engine, data), register(pair.receiver.engine, pool)
    pages = list(range(shape.pages))
    one = lane(shape, source, pair.peer, target.grant("sender"), pages, pages)
    weight = shape.layers * shape.pages
    pair.receiver.engine.expect(3, weight)
    counter = pair.sender.engine.counter()
    counter.add(shape.layers)
    pair.sender.engine.arm(program(counter, shape, 3, one))
    assert select.select([pair.receiver.engine], [], [], 20)[0], "the slot never filled"
    assert pair.receiver.engine.forget(3) == weight
    assert select.select([pair.receiver.engine], [], [], 0)[0] == [], "readable without an event"
    assert pair.receiver.engine.poll() == []
    pair.receiver.engine.expect(3, 1)
    assert pair.receiver.settle(0.05) == []


def test_the_worker_never_waits_for_the_gil(pair: Pair) -> None:
    """Programs end on the worker's thread, and what they held of Python's objects with them."""
    shape = Shape()
    data, pool = noise(shape.total), poisoned(shape.total)
    source, target = register(pair.sender.engine, data), register(pair.receiver.engine, pool)
    pages = list(range(shape.pages))
    interval = sys.getswitchinterval()
    one = program(
        pair.sender.engine.counter(), shape, 3, lane(shape, source, pair.peer, target.grant("s"), pages, pages)
    )
    one.counter.add(shape.layers)
    pair.sender.engine.arm(one)
    del one, source
    sys.setswitchinterval(30)  # from here on this thread keeps the GIL: poll() does not release it
    try:
        limit = time.monotonic() + 5
        while not (events := pair.sender.engine.poll()):
            assert time.monotonic() < limit, "the worker waits for the GIL"
    finally:
        sys.setswitchinterval(interval)
    assert [type(event) for event in events] == [ProgramDone]
