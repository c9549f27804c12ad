"""Engine.write and write_pages: programs that wait for nothing."""

from typing import Any

import numpy as np
import pytest
from fabric_kit import POISON, noise, poisoned, register, wait_slot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import Pair
from pyfabric import MemoryRegion, ProgramDone, ProgramDrained, RemoteRegion

TOTAL = 1 << 18
SLOT = 4


@st.composite
def paged(draw: st.DrawFn) -> tuple[dict[str, int], list[int], list[int]]:
    """Strides, offsets and page lists that stay inside TOTAL; no destination page twice."""
    stride = draw(st.sampled_from([64, 1000, 4096]))
    nbytes = draw(st.one_of(st.just(stride), st.integers(1, stride)))
    offsets = {f"{side}_offset": draw(st.integers(0, 5000)) for side in ("source", "destination")}
    pages = (TOTAL - 5000) // stride
    count = draw(st.integers(1, min(20, pages)))
    take = draw(st.lists(st.integers(0, pages - 1), min_size=count, max_size=count))
    put = draw(st.lists(st.integers(0, pages - 1), min_size=count, max_size=count, unique=True))
    return {"stride": stride, "nbytes": nbytes, **offsets}, take, put


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(paged())
def test_pages_land_where_the_stride_says(pair: Pair, call: tuple[dict[str, int], list[int], list[int]]) -> None:
    where, take, put = call
    source, destination = noise(TOTAL), poisoned(TOTAL)
    region, target = register(pair.sender.engine, source), register(pair.receiver.engine, destination)
    pair.receiver.seen.clear()
    pair.sender.seen.clear()
    pair.receiver.engine.expect(SLOT, len(take))
    pages = [np.array(side, np.int32) for side in (take, put)]
    handle = pair.sender.engine.write_pages(
        region, pages[0], pair.peer, target.grant("s"), pages[1], slot=SLOT, **where
    )
    (done,) = pair.sender.wait(ProgramDone)
    assert isinstance(done, ProgramDone) and done.handle == handle
    wait_slot(pair.receiver, SLOT)
    assert pair.receiver.engine.forget(SLOT) == len(take)
    wanted = poisoned(TOTAL)
    for a, b in zip(take, put, strict=True):
        here = where["source_offset"] + a * where["stride"]
        there = where["destination_offset"] + b * where["stride"]
        wanted[there : there + where["nbytes"]] = source[here : here + where["nbytes"]]
    assert np.array_equal(destination, wanted)
    region.close()
    target.close()


def test_one_range_counts_once(pair: Pair) -> None:
    source, destination = noise(TOTAL), poisoned(TOTAL)
    region, target = register(pair.sender.engine, source), register(pair.receiver.engine, destination)
    pair.receiver.engine.expect(SLOT, 2)
    grant = target.grant("s")
    handles = [
        pair.sender.engine.write(region, 3, pair.peer, grant, 70, 100_001, slot=SLOT),
        pair.sender.engine.write(region, TOTAL - 1, pair.peer, grant, TOTAL - 1, 1, slot=SLOT),
    ]
    done = pair.sender.wait(ProgramDone, count=2)
    assert [event.handle for event in done if isinstance(event, ProgramDone)] == handles
    wait_slot(pair.receiver, SLOT)
    assert np.array_equal(destination[70:100_071], source[3:100_004])
    assert destination[-1] == source[-1]
    assert (destination[:70] == POISON).all() and (destination[100_071:-1] == POISON).all()


def test_handles_are_a_programs(pair: Pair) -> None:
    """Cancelled before the worker has it, or after it has ended: drained or done, once."""
    source, destination = noise(TOTAL), poisoned(TOTAL)
    region, target = register(pair.sender.engine, source), register(pair.receiver.engine, destination)
    grant = target.grant("s")
    handles = []
    for _ in range(50):
        handles.append(pair.sender.engine.write(region, 0, pair.peer, grant, 0, TOTAL, slot=SLOT))
        pair.sender.engine.cancel(handles[-1])
    pair.sender.wait(ProgramDone | ProgramDrained, count=len(handles))
    pair.sender.settle(0.01)  # and no second one
    assert pair.sender.engine.stats().armed == 0
    ended = [event.handle for event in pair.sender.seen if isinstance(event, ProgramDone | ProgramDrained)]
    assert sorted(ended) == handles
    region.close()


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"nbytes": 0}, "nbytes"),
        ({"nbytes": TOTAL + 1}, "source_pages|exceeds"),
        ({"source_offset": TOTAL}, "source"),
        ({"source_offset": -1}, "source_offset"),
        ({"destination_offset": 1}, "destination"),
        ({"destination_offset": 2**64}, "destination_offset"),
        ({"peer": 99}, "peer 99"),
        ({"slot": 1 << 16}, "slot"),
    ],
)
def test_bad_ranges_are_named(pair: Pair, change: dict[str, Any], names: str) -> None:
    region: MemoryRegion = register(pair.sender.engine, noise(TOTAL))
    good: dict[str, Any] = {
        "source": region,
        "source_offset": 0,
        "peer": pair.peer,
        "destination": RemoteRegion(0, 1, TOTAL),
        "destination_offset": 0,
        "nbytes": TOTAL,
        "slot": SLOT,
    }
    with pytest.raises(ValueError, match=names):
        pair.sender.engine.write(**{**good, **change})
    assert pair.sender.engine.stats().armed == 0
