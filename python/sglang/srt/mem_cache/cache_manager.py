"""Page accounting of one replica: who holds which page, and what is cached.

Every page is in exactly one place: free, in the prefix tree, or private to one lease. `check()` proves it.
"""

from collections.abc import Sequence

from sglang.srt.errors import EngineError
from sglang.srt.mem_cache.page_pool import PagePool
from sglang.srt.mem_cache.prefix_tree import Node, PrefixTree


class PageLease:
    """The pages of one request, in token order. Opened, extended, committed and released by the CacheManager only."""

    __slots__ = ("cached_tokens", "node", "pages", "private", "released")

    def __init__(self, node: Node, pages: list[int], cached_tokens: int) -> None:
        self.node = node
        self.pages = pages
        self.private: set[int] = set()
        """Pages that go back to the pool at release; the others are the tree's, locked through `node`."""
        self.cached_tokens = cached_tokens
        """Tokens whose KV was there when the lease was opened; a multiple of the page size."""
        self.released = False


class CacheManager:
    """Pages for requests, with prefix reuse and LRU eviction."""

    def __init__(self, *, num_pages: int, page_size: int, reuse: bool = True) -> None:
        self.page_size = page_size
        self._pool = PagePool(num_pages)
        self._tree = PrefixTree(page_size)
        self._reuse = reuse
        self._leases: set[PageLease] = set()

    @property
    def num_pages(self) -> int:
        """All pages of the pool."""
        return self._pool.num_pages

    @property
    def available(self) -> int:
        """Pages that extend() could still give out: free ones and evictable ones."""
        return self._pool.free + self._tree.evictable

    @property
    def held(self) -> int:
        """Pages that live requests hold, shared ones counted once."""
        return self.num_pages - self.available

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens` tokens."""
        return -(-tokens // self.page_size)

    def match_tokens(self, tokens: Sequence[int]) -> int:
        """Cached prefix of `tokens`, in tokens, without touching anything."""
        return self._tree.match_pages(tokens) * self.page_size if self._reuse else 0

    def open(self, tokens: Sequence[int], limit: int) -> PageLease:
        """A lease that holds the longest cached prefix of tokens[:limit]; it owns nothing else yet."""
        head = tokens[: max(0, limit)] if self._reuse else ()
        node, pages = self._tree.match(head)
        self._tree.lock(node)
        lease = PageLease(node, pages, len(pages) * self.page_size)
        self._leases.add(lease)
        return lease

    def extend(self, lease: PageLease, tokens: int) -> list[int] | None:
        """Grow a lease to cover `tokens` tokens, evicting if need be. The new pages, or None (and no change) if too
        few.
        """
        if tokens <= len(lease.pages) * self.page_size:
            return []
        missing = self.pages_for(tokens) - len(lease.pages)
        if missing > self.available:
            return None
        if missing > self._pool.free:
            self._pool.give(self._tree.evict(missing - self._pool.free))
        pages = self._pool.take(missing)
        lease.pages += pages
        lease.private.update(pages)
        return pages

    def commit(self, lease: PageLease, tokens: Sequence[int]) -> None:
        """Say that the lease's pages hold the KV of `tokens`: whole pages become findable by later requests."""
        if lease.released:
            raise EngineError("commit on a released lease")
        if not self._reuse:
            return
        node, known = self._tree.insert(tokens, lease.pages)
        self._tree.lock(node)
        self._tree.unlock(lease.node)
        lease.node = node
        lease.private.difference_update(lease.pages[known : len(tokens) // self.page_size])

    def release(self, lease: PageLease) -> None:
        """Give everything back; what was committed stays cached. Raises EngineError at the second time."""
        if lease.released:
            raise EngineError("lease released twice")
        lease.released = True
        self._leases.remove(lease)
        self._tree.unlock(lease.node)
        self._pool.give(lease.private)

    def flush(self) -> int:
        """Drop every cached page that no lease holds; returns how many."""
        pages = self._tree.evict(self._tree.evictable)
        self._pool.give(pages)
        return len(pages)

    def check(self) -> None:
        """Raises EngineError unless free + cached + private is every page exactly once."""
        private = sum(len(lease.private) for lease in self._leases)
        total = self._pool.free + self._tree.pages + private
        if total != self.num_pages:
            raise EngineError(
                f"pages do not add up: {self._pool.free} free + {self._tree.pages} cached + {private} private "
                f"!= {self.num_pages}"
            )
        if not self._leases and self._tree.locked:
            raise EngineError(f"{self._tree.locked} pages are locked by nobody")
