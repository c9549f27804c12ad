"""No bad argument reaches libfabric, and each refusal names the field."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fabric_kit import Shape, lane, noise, poisoned, program, register

from conftest import Pair
from pyfabric import (
    Engine,
    FabricError,
    Lane,
    MemoryRegion,
    Program,
    ProgramDone,
    ProviderUnavailableError,
    RemoteRegion,
)

SHAPE = Shape(layers=2, pages=4)
HUGE = 2**63


@pytest.fixture
def provider() -> str:
    return "tcp"


@pytest.fixture
def source(pair: Pair) -> Iterator[MemoryRegion]:
    data = noise(SHAPE.total)
    yield register(pair.sender.engine, data)


def good(pair: Pair, source: MemoryRegion) -> tuple[Lane, Program]:
    remote = RemoteRegion(0, 1, SHAPE.total)
    one = lane(SHAPE, source, pair.peer, remote, [0, 1], [2, 3])
    return one, program(pair.sender.engine.counter(), SHAPE, 0, one)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"source_pages": np.array([0, 4], np.int32)}, "source_pages"),
        ({"destination_pages": np.array([0, 4], np.int32)}, "destination_pages"),
        ({"source_pages": np.array([-1, 0], np.int32)}, "negative index"),
        ({"source_pages": np.array([0], np.int32)}, "differ in length"),
        ({"source_pages": np.array([0, 1], np.int64)}, "source_pages must be"),
        ({"source_pages": np.array([[0, 1]], np.int32)}, "source_pages must be"),
        ({"source_pages": np.arange(4, dtype=np.int32)[::2]}, "source_pages must be"),
        ({"source_pages": [0, 1]}, "source_pages must be"),
        ({"source_pages": np.array([], np.int32), "destination_pages": np.array([], np.int32)}, "empty"),
        ({"source_layers": np.array([0], np.uint64)}, "source_layers"),
        ({"source_layers": np.array([0, 1.5])}, "source_layers"),
        ({"destination_layers": np.array([0, HUGE], np.uint64)}, "outside the destination region"),
        ({"source_layers": np.array([0, 2**64 - 4096], np.uint64)}, "outside the source region"),
        ({"nbytes": 0}, "nbytes"),
        ({"nbytes": 4097}, "exceeds source_page_bytes"),
        ({"nbytes": -1}, "nbytes"),
        ({"source_offset": 1}, "source_offset"),
        ({"destination_offset": 2**64 - 1}, "destination_offset"),
        ({"source_page_bytes": HUGE, "source_pages": np.array([0, 3], np.int32)}, "outside the source region"),
        ({"source_page_bytes": "wide"}, "source_page_bytes"),
        ({"destination": RemoteRegion(2**64 - 10, 1, SHAPE.total)}, "wraps"),
        ({"destination": RemoteRegion(-1, 1, SHAPE.total)}, "destination.base"),
        ({"peer": 77}, "peer 77"),
        ({"peer": -1}, "peer"),
    ],
)
def test_bad_lanes_are_named(pair: Pair, source: MemoryRegion, change: dict[str, Any], names: str) -> None:
    one, whole = good(pair, source)
    with pytest.raises(ValueError, match=names):
        pair.sender.engine.arm(replace(whole, lanes=(replace(one, **change),)))
    assert pair.sender.engine.stats().armed == 0


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"thresholds": np.array([], np.uint64)}, "thresholds is empty"),
        ({"thresholds": np.array([2, 1], np.uint64)}, "must not decrease"),
        ({"thresholds": np.array([1, 2], np.int64)}, "thresholds must be"),
        ({"slot": 1 << 16}, "slot"),
        ({"slot": -1}, "slot"),
        ({"lanes": ()}, "lanes is empty"),
    ],
)
def test_bad_programs_are_named(pair: Pair, source: MemoryRegion, change: dict[str, Any], names: str) -> None:
    _, whole = good(pair, source)
    with pytest.raises(ValueError, match=names):
        pair.sender.engine.arm(replace(whole, **change))


def test_closed_region_is_refused(pair: Pair, source: MemoryRegion) -> None:
    _, whole = good(pair, source)
    source.close()
    source.close()
    with pytest.raises(ValueError, match="closed"):
        pair.sender.engine.arm(whole)
    with pytest.raises(ValueError, match="closed"):
        source.grant("x")


def test_region_cannot_close_under_a_program(pair: Pair, source: MemoryRegion) -> None:
    destination = poisoned(SHAPE.total)
    target = register(pair.receiver.engine, destination)
    counter = pair.sender.engine.counter()
    one = lane(SHAPE, source, pair.peer, target.grant("s"), [0], [0])
    pair.sender.engine.arm(program(counter, SHAPE, 0, one))
    with pytest.raises(FabricError, match="1 programs"):
        source.close()
    counter.add(2)
    pair.sender.wait(ProgramDone)
    source.close()


@pytest.mark.parametrize(("address", "nbytes"), [(0, 16), (4096, 16), (2**64 - 16, 16), (2**63, 2**63), (-1, 1)])
def test_unmapped_memory_is_refused(pair: Pair, address: int, nbytes: int) -> None:
    with pytest.raises(ValueError, match=r"register|address"):
        pair.sender.engine.register(address, nbytes)


def test_read_only_memory_gets_no_grant(pair: Pair) -> None:
    import mmap

    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ)
    view = np.frombuffer(page, np.uint8)
    region = register(pair.sender.engine, view)
    with pytest.raises(ValueError, match="writable"):
        region.grant("x")
    region.close()


@pytest.mark.parametrize("blob", [b"", b"x" * 39, b"x" * 200, b"y" * 100_000])
def test_foreign_addresses_are_refused(pair: Pair, blob: bytes) -> None:
    with pytest.raises(ValueError, match="address"):
        pair.sender.engine.connect(blob)


def test_address_is_checked_byte_by_byte(pair: Pair) -> None:
    address = pair.receiver.engine.address
    for length in range(len(address)):
        with pytest.raises(ValueError, match="address"):
            pair.sender.engine.connect(address[:length])
    with Engine(provider="shm") as other, pytest.raises(ValueError, match="provider shm"):
        pair.sender.engine.connect(other.address)


def test_slots_are_checked(pair: Pair) -> None:
    engine = pair.receiver.engine
    for slot, weight in ((4096, 1), (-1, 1), (0, 0), (0, -1), (2**70, 1)):
        with pytest.raises(ValueError, match=r"slot|weight"):
            engine.expect(slot, weight)
    engine.expect(0, 1)
    with pytest.raises(ValueError, match="busy"):
        engine.expect(0, 1)
    assert engine.forget(0) == 0
    with pytest.raises(ValueError, match="not expected"):
        engine.forget(0)


def test_peers_and_handles_are_checked(pair: Pair) -> None:
    engine = pair.sender.engine
    for call in (engine.warm, engine.disconnect):
        for peer in (-1, 99):
            with pytest.raises(ValueError, match="peer"):
                call(peer)
    for handle in (0, -1, 5):
        with pytest.raises(ValueError, match="handle"):
            engine.cancel(handle)
    engine.disconnect(pair.peer)
    with pytest.raises(ValueError, match="peer"):
        engine.disconnect(pair.peer)


@pytest.mark.parametrize(
    "bad",
    [
        {"weight_bits": 0},
        {"weight_bits": 32},
        {"weight_bits": -1},
        {"slots": 0},
        {"slots": 65537},
        {"post_deadline_s": 0.0},
    ],
)
def test_bad_engine_options_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"weight_bits|slots|post_deadline_s"):
        Engine(provider="tcp", **bad)


def test_unknown_provider_names_itself_and_the_library() -> None:
    with pytest.raises(ProviderUnavailableError, match=r"nonesuch.*libfabric"):
        Engine(provider="nonesuch")
