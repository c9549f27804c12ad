"""The service over a backend that does as it is told."""

import select
import threading
import time
from collections.abc import Iterator

import pytest

from sglang.srt.constrained.base import Bits, GrammarError
from sglang.srt.constrained.limits import GrammarLimits
from sglang.srt.constrained.service import GrammarService
from sglang.srt.core.grammar import GrammarSpec, GrammarState
from sglang.srt.errors import EngineError

PENDING, READY, REJECTED = GrammarState.PENDING, GrammarState.READY, GrammarState.REJECTED


class Anything:
    """Matcher and compiled grammar at once."""

    terminated = False

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def matcher(self) -> "Anything":
        return self

    def fill(self, bits: Bits) -> None:
        bits[:] = -1

    def accept(self, token: int) -> bool:
        return True

    def rollback(self, count: int) -> None:
        pass


class Backend:
    """`slow...` waits for the gate, `bad...` fails, `odd...` breaks, `size N` is N bytes."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.compiled: list[str] = []
        self.closed = False

    def compile(self, spec: GrammarSpec) -> Anything:
        self.compiled.append(spec.text)
        if spec.text.startswith("slow"):
            assert self.gate.wait(10)
        if spec.text.startswith("bad"):
            raise GrammarError(f"{spec.kind}: no good")
        if spec.text.startswith("lost"):
            raise GrammarError("lost", status=503)
        if spec.text.startswith("odd"):
            raise ZeroDivisionError
        return Anything(int(spec.text.removeprefix("size ")) if spec.text.startswith("size") else 1)

    def close(self) -> None:
        self.closed = True
        self.gate.set()


@pytest.fixture
def backend() -> Backend:
    return Backend()


@pytest.fixture
def service(backend: Backend) -> Iterator[GrammarService]:
    limits = GrammarLimits(text_bytes=100, cache_bytes=100, cache_entries=3, workers=2)
    made = GrammarService(lambda: backend, limits)
    yield made
    made.close()
    made.close()
    assert backend.closed or not backend.compiled


def spec(text: str) -> GrammarSpec:
    return GrammarSpec(kind="regex", text=text)


def settle(service: GrammarService, *texts: str) -> dict[str, GrammarState]:
    """Acquires, and waits until all have ended."""
    found = {text: service.acquire(spec(text)) for text in texts}
    end = time.monotonic() + 10
    while any(state is PENDING for state in found.values()):
        assert select.select([service], [], [], end - time.monotonic())[0], found
        found.update({ended.text: state for ended, state in service.poll()})
    return found


def test_results_come_through_the_descriptor_and_are_shared(service: GrammarService, backend: Backend) -> None:
    assert settle(service, "a", "bad", "b") == {"a": READY, "bad": REJECTED, "b": READY}
    assert service.reason(spec("bad")) == "regex: no good"
    assert not select.select([service], [], [], 0)[0] and service.poll() == []
    assert service.acquire(spec("a")) is READY and service.acquire(spec("bad")) is REJECTED
    assert sorted(backend.compiled) == ["a", "b", "bad"]
    assert service.matcher(spec("a")).accept(1)
    assert service.counters() == {"num_grammars_compiled_total": 2, "num_grammars_rejected_total": 1}


def test_what_is_too_long_is_refused_at_once(service: GrammarService, backend: Backend) -> None:
    assert service.acquire(spec("x" * 101)) is REJECTED
    assert "101 bytes pass the limit of 100" in service.reason(spec("x" * 101))
    assert backend.compiled == []


def test_a_library_that_breaks_ends_one_grammar(service: GrammarService) -> None:
    assert settle(service, "odd", "a") == {"odd": REJECTED, "a": READY}
    assert "failed on it" in service.reason(spec("odd"))


def test_a_slow_one_does_not_hold_up_another(service: GrammarService, backend: Backend) -> None:
    assert service.acquire(spec("slow")) is PENDING
    assert settle(service, "a") == {"a": READY}
    assert service.acquire(spec("slow")) is PENDING
    with pytest.raises(EngineError):
        service.matcher(spec("slow"))
    backend.gate.set()
    end = time.monotonic() + 5
    while service.acquire(spec("slow")) is PENDING and time.monotonic() < end:
        time.sleep(0.01)
    assert backend.compiled.count("slow") == 1


def test_used_grammars_stay_and_idle_ones_go_oldest_first(service: GrammarService, backend: Backend) -> None:
    texts = ["size 40", "size 41", "size 42", "size 43"]
    settle(service, *texts)
    assert all(service.acquire(spec(text)) is READY for text in texts), "in use: beyond every bound, and kept"
    for text in texts:
        service.release(spec(text))
        service.release(spec(text))
    # 42 + 43 bytes fit into 100, what was used before does not.
    assert service.acquire(spec("size 43")) is READY and service.acquire(spec("size 42")) is READY
    assert service.acquire(spec("size 41")) is PENDING
    settle(service, "size 41")
    assert backend.compiled.count("size 41") == 2 and backend.compiled.count("size 43") == 1


def test_what_failed_for_the_moment_is_tried_again(service: GrammarService, backend: Backend) -> None:
    settle(service, "lost")
    assert service.acquire(spec("lost")) is REJECTED
    for _ in range(2):
        service.release(spec("lost"))
    assert service.acquire(spec("lost")) is PENDING
    settle(service, "bad")
    service.release(spec("bad"))
    assert service.acquire(spec("bad")) is REJECTED


def test_closing_while_one_compiles(backend: Backend) -> None:
    service = GrammarService(lambda: backend, GrammarLimits())
    service.acquire(spec("slow"))
    while not backend.compiled:
        time.sleep(0.01)
    service.close()
    assert backend.closed
    assert service.acquire(spec("a")) is REJECTED


def test_a_warm_service_opens_its_backend_before_the_first_grammar_and_once() -> None:
    opened: list[threading.Thread] = []

    def open_backend() -> Backend:
        opened.append(threading.current_thread())
        return Backend()

    service = GrammarService(open_backend, GrammarLimits())  # type: ignore[arg-type]
    service.warm()
    end = time.monotonic() + 10
    while not opened and time.monotonic() < end:
        time.sleep(0.005)
    assert len(opened) == 1 and opened[0] is not threading.current_thread()
    service.acquire(GrammarSpec(kind="regex", text="a"))
    assert select.select([service.fileno()], [], [], 10)[0]
    service.close()
    assert len(opened) == 1
