"""The waiting queue: order by policy, removal, places kept by those that come back, and cost."""

import random
import time

import pytest

from sglang.srt.core.sampling import SamplingParams
from sglang.srt.managers.queue import LOOKAHEAD, WaitingQueue
from sglang.srt.managers.request import Request
from sglang.srt.mem_cache.cache_manager import CacheManager


def request(number: int, *, priority: int = 0, tokens: list[int] | None = None, group: str = "") -> Request:
    prompt = tokens or [number]
    return Request(
        rid=str(number),
        tokens=prompt,
        prompt_length=len(prompt),
        sampling=SamplingParams(),
        seed=0,
        arrived=0.0,
        limit=8,
        priority=priority,
        group=group,
    )


@pytest.fixture
def cache() -> CacheManager:
    return CacheManager(num_pages=64, page_size=4)


def order(queue: WaitingQueue, cache: CacheManager) -> list[int]:
    return [int(found.rid) for found, _ in queue.due(0.0, cache)]


@pytest.mark.parametrize("seed", range(5))
def test_priority_first_then_arrival_whatever_leaves_and_comes_back(seed: int, cache: CacheManager) -> None:
    rng = random.Random(seed)
    queue, waiting, held = WaitingQueue("priority"), [], []
    for number in range(100):
        one = request(number, priority=rng.randrange(3))
        queue.add(one)
        waiting.append(one)
        if rng.random() < 0.4:
            gone = rng.choice(waiting)
            queue.remove(gone)
            waiting.remove(gone)
            held.append(gone)
        if held and rng.random() < 0.3:
            back = held.pop(rng.randrange(len(held)))
            queue.push_front(back)
            waiting.append(back)
        assert len(queue) == len(waiting)
    expected = sorted(waiting, key=lambda r: (-r.priority, int(r.rid)))
    assert order(queue, cache) == [int(r.rid) for r in expected]
    with pytest.raises(ValueError, match="does not wait"):
        queue.remove(held[0])


def test_lpm_looks_at_the_cached_prefix(cache: CacheManager) -> None:
    known = list(range(16))
    lease = cache.open(known, 16)
    cache.extend(lease, 16)
    cache.commit(lease, known)
    cache.release(lease)
    queue = WaitingQueue("lpm")
    queue.add(request(0, tokens=[99] * 16))
    queue.add(request(1, tokens=known[:8] + [7] * 8))
    queue.add(request(2, tokens=[*known, 5]))
    assert order(queue, cache) == [2, 1, 0]


def test_those_that_are_not_due_do_not_block_the_others(cache: CacheManager) -> None:
    queue = WaitingQueue("fcfs")
    for number in range(LOOKAHEAD + 10):
        one = request(number)
        one.not_before = 5.0
        queue.add(one)
    queue.add(request(9999))
    assert order(queue, cache) == [9999]
    assert queue.next_due(0.0) == 5.0


def test_the_cost_of_a_look_does_not_grow_with_the_queue(cache: CacheManager) -> None:
    def cost(waiting: int) -> float:
        queue = WaitingQueue("fcfs")
        for number in range(waiting):
            queue.add(request(number))
        best = float("inf")
        for _ in range(20):
            began = time.process_time_ns()
            for _ in range(20):
                next(queue.due(0.0, cache))
                queue.next_due(0.0)
            best = min(best, time.process_time_ns() - began)
        return best

    assert cost(20_000) < 4 * cost(200)
