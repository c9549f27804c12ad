"""Page accounting under random request lives: every page is in one place, and what is matched is what was committed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sglang.srt.errors import EngineError
from sglang.srt.mem_cache.cache_manager import CacheManager, PageLease
from sglang.srt.mem_cache.page_pool import PagePool


def test_key_shorter_than_a_page_matches_nothing_and_balances() -> None:
    """Reported case A13."""
    cache = CacheManager(num_pages=8, page_size=16)
    lease = cache.open([1, 2, 3], 2)
    assert lease.cached_tokens == 0 and lease.pages == []
    assert cache.extend(lease, 3) is not None
    cache.commit(lease, [1, 2, 3])
    cache.release(lease)
    assert cache.available == 8
    assert cache.open([1, 2, 3], 3).cached_tokens == 0
    cache.check()


def test_matched_pages_are_the_committed_ones_and_cannot_be_evicted() -> None:
    cache = CacheManager(num_pages=4, page_size=2)
    first = cache.open([1, 2, 3, 4, 5], 4)
    pages = cache.extend(first, 5)
    cache.commit(first, [1, 2, 3, 4, 5])
    cache.release(first)
    second = cache.open([1, 2, 3, 4, 9], 4)
    assert pages is not None and second.pages == pages[:2] and second.cached_tokens == 4
    third = cache.open([7] * 6, 6)
    assert cache.extend(third, 6) is None, "three pages wanted, two locked by the second request"
    assert cache.extend(third, 4) is not None


def test_two_requests_that_computed_the_same_prefix_both_give_their_pages_back() -> None:
    cache = CacheManager(num_pages=8, page_size=2)
    leases = [cache.open([1, 2, 3, 4], 4) for _ in range(2)]
    for lease in leases:
        cache.extend(lease, 4)
    for lease in leases:
        cache.commit(lease, [1, 2, 3, 4])
    for lease in leases:
        cache.release(lease)
    cache.check()
    assert cache.flush() == 2 and cache.available == 8


def test_eviction_takes_the_least_recently_used_tail_first() -> None:
    cache = CacheManager(num_pages=4, page_size=1)
    for tokens in ([1, 2], [5, 6]):
        lease = cache.open(tokens, 2)
        cache.extend(lease, 2)
        cache.commit(lease, tokens)
        cache.release(lease)
    assert cache.match_tokens([1, 2]) == 2
    cache.release(cache.open([1, 2], 2))
    third = cache.open([9], 1)
    cache.extend(third, 1)
    assert cache.match_tokens([1, 2]) == 2 and cache.match_tokens([5, 6]) == 1


def test_without_reuse_nothing_is_cached() -> None:
    cache = CacheManager(num_pages=4, page_size=1, reuse=False)
    lease = cache.open([1, 2], 2)
    cache.extend(lease, 2)
    cache.commit(lease, [1, 2])
    cache.release(lease)
    assert cache.match_tokens([1, 2]) == 0 and cache.open([1, 2], 2).cached_tokens == 0


def test_a_page_cannot_be_given_back_twice() -> None:
    pool = PagePool(2)
    pages = pool.take(1)
    pool.give(pages)
    with pytest.raises(EngineError, match="twice"):
        pool.give(pages)
    with pytest.raises(EngineError, match="wanted"):
        pool.take(3)


def test_a_lease_cannot_be_released_twice() -> None:
    cache = CacheManager(num_pages=2, page_size=1)
    lease = cache.open([1], 1)
    cache.release(lease)
    with pytest.raises(EngineError, match="twice"):
        cache.release(lease)


class Lives(RuleBasedStateMachine):
    """Random opens, extensions, commits and releases over a tiny alphabet, so that prefixes collide."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = CacheManager(num_pages=12, page_size=2)
        self.live: list[tuple[PageLease, list[int], int]] = []
        self.content: dict[int, tuple[int, ...]] = {}

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12))
    def start(self, tokens: list[int]) -> None:
        lease = self.cache.open(tokens, len(tokens) - 1)
        for i, page in enumerate(lease.pages):
            assert self.content[page] == tuple(tokens[: (i + 1) * 2]), "a matched page holds another prefix"
        self.live.append((lease, tokens, lease.cached_tokens))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.live) - 1))
        lease, tokens, done = self.live[index]
        upto = data.draw(st.integers(done, len(tokens)))
        if self.cache.extend(lease, upto) is None:
            return
        for page in range(done // 2, upto // 2):
            self.content[lease.pages[page]] = tuple(tokens[: (page + 1) * 2])
        self.cache.commit(lease, tokens[:upto])
        self.live[index] = (lease, tokens, upto)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        lease, _, _ = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.cache.release(lease)

    @rule()
    def flush(self) -> None:
        self.cache.flush()

    @invariant()
    def adds_up(self) -> None:
        self.cache.check()
        for lease, tokens, done in self.live:
            for i in range(done // 2):
                assert self.content[lease.pages[i]] == tuple(tokens[: (i + 1) * 2]), "a live request lost a page"

    def teardown(self) -> None:
        for lease, _, _ in self.live:
            self.cache.release(lease)
        self.cache.flush()
        assert self.cache.available == 12


Lives.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLives = Lives.TestCase


@given(st.lists(st.integers(0, 2), max_size=20), st.lists(st.integers(0, 2), max_size=20), st.integers(1, 4))
def test_match_length_is_the_common_prefix_in_whole_pages(one: list[int], two: list[int], page: int) -> None:
    cache = CacheManager(num_pages=64, page_size=page)
    lease = cache.open(one, len(one))
    cache.extend(lease, len(one))
    cache.commit(lease, one)
    common = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    assert cache.match_tokens(two) == common // page * page
