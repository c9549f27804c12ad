"""A radix tree from token prefixes to the KV pages that hold them.

Page-granular: a node's key is a list of whole pages' tokens, a child is found by the tokens of its first page. A lock
on a node locks its path to the root, so a locked prefix can never lose a page in its middle. Eviction takes unlocked
leaves, least recently used first, and only as many pages from a leaf's tail as are wanted.

    root ── [p0 p1 p2]* ── [p3]*           * locked by a request that reads p0..p3
                       └── [p7 p8]         evictable, tail first
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import count

from sglang.srt.errors import EngineError

Chunk = tuple[int, ...]
"""The tokens of one page."""


def chunks_of(tokens: Sequence[int], page_size: int) -> list[Chunk]:
    """The whole pages of a token sequence; a partial last page is left out."""
    whole = len(tokens) - len(tokens) % page_size
    return [tuple(tokens[i : i + page_size]) for i in range(0, whole, page_size)]


class Node:
    """A run of pages whose tokens follow the parent's."""

    __slots__ = ("children", "chunks", "locks", "pages", "parent", "used")

    def __init__(self, chunks: list[Chunk], pages: list[int], parent: "Node | None", used: int) -> None:
        self.chunks = chunks
        self.pages = pages
        self.parent = parent
        self.children: dict[Chunk, Node] = {}
        self.locks = 0
        self.used = used

    def path(self) -> Iterator["Node"]:
        """This node and its ancestors, the root excluded."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class PrefixTree:
    """Owns the pages inserted into it, until evict() gives them back."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.root = Node([], [], None, 0)
        self.pages = 0
        """Pages that the tree owns."""
        self.locked = 0
        """Of those, pages on a locked path."""
        self._tick = count(1)

    @property
    def evictable(self) -> int:
        """Pages that evict() could give back now."""
        return self.pages - self.locked

    def match_pages(self, tokens: Sequence[int]) -> int:
        """How many leading pages are cached. Changes nothing; for policies that compare prompts."""
        node, matched, chunks = self.root, 0, chunks_of(tokens, self.page_size)
        while matched < len(chunks) and (child := node.children.get(chunks[matched])) is not None:
            same = _common(child.chunks, chunks, matched)
            matched += same
            if same < len(child.chunks):
                break
            node = child
        return matched

    def match(self, tokens: Sequence[int]) -> tuple[Node, list[int]]:
        """The node where the longest cached prefix ends (split there if need be) and the pages up to it."""
        node, pages, _ = self._descend(chunks_of(tokens, self.page_size))
        return node, pages

    def insert(self, tokens: Sequence[int], pages: Sequence[int]) -> tuple[Node, int]:
        """Make `tokens`' whole pages findable, `pages[i]` holding page i.

        Returns the node where they end and k: pages[:k] were cached before under other (or the same) numbers and stay
        the caller's; pages[k:] are the tree's from now on.
        """
        chunks = chunks_of(tokens, self.page_size)
        if len(pages) < len(chunks):
            raise EngineError(f"{len(chunks)} pages of tokens but only {len(pages)} pages")
        node, _, known = self._descend(chunks)
        if known < len(chunks):
            child = Node(chunks[known:], list(pages[known : len(chunks)]), node, next(self._tick))
            node.children[chunks[known]] = child
            self.pages += len(child.pages)
            node = child
        return node, known

    def lock(self, node: Node) -> None:
        """Keep a node and its ancestors from eviction."""
        for step in node.path():
            if step.locks == 0:
                self.locked += len(step.pages)
            step.locks += 1

    def unlock(self, node: Node) -> None:
        """Undo one lock(); raises EngineError where there is none."""
        for step in node.path():
            if step.locks == 0:
                raise EngineError("a prefix was unlocked more often than locked")
            step.locks -= 1
            if step.locks == 0:
                self.locked -= len(step.pages)

    def evict(self, wanted: int) -> list[int]:
        """Up to `wanted` pages, least recently used leaves first; fewer where the rest is locked."""
        order = count()
        leaves = [(n.used, next(order), n) for n in self._nodes() if _is_free_leaf(n)]
        heapq.heapify(leaves)
        freed: list[int] = []
        while leaves and len(freed) < wanted:
            _, _, leaf = heapq.heappop(leaves)
            parent = leaf.parent
            freed += self._trim(leaf, wanted - len(freed))
            if not leaf.pages and parent is not None and _is_free_leaf(parent):
                heapq.heappush(leaves, (parent.used, next(order), parent))
        return freed

    def _trim(self, leaf: Node, most: int) -> list[int]:
        keep = max(0, len(leaf.pages) - most)
        freed = leaf.pages[keep:]
        if keep == 0:
            assert leaf.parent is not None
            del leaf.parent.children[leaf.chunks[0]]
        del leaf.pages[keep:], leaf.chunks[keep:]
        self.pages -= len(freed)
        return freed

    def _nodes(self) -> Iterator[Node]:
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _descend(self, chunks: list[Chunk]) -> tuple[Node, list[int], int]:
        node, pages, matched = self.root, list[int](), 0
        tick = next(self._tick)
        while matched < len(chunks) and (child := node.children.get(chunks[matched])) is not None:
            same = _common(child.chunks, chunks, matched)
            if same < len(child.chunks):
                child = self._split(child, same)
            child.used = tick
            pages += child.pages
            matched += same
            node = child
        return node, pages, matched

    def _split(self, node: Node, at: int) -> Node:
        """Cut a node in two; the upper part is new and takes the lower one's locks, as every lock below passes it."""
        assert node.parent is not None
        upper = Node(node.chunks[:at], node.pages[:at], node.parent, node.used)
        upper.locks = node.locks
        node.parent.children[upper.chunks[0]] = upper
        node.chunks, node.pages, node.parent = node.chunks[at:], node.pages[at:], upper
        upper.children[node.chunks[0]] = node
        return upper


def _is_free_leaf(node: Node) -> bool:
    return node.parent is not None and not node.children and node.locks == 0


def _common(mine: list[Chunk], theirs: list[Chunk], start: int) -> int:
    most = min(len(mine), len(theirs) - start)
    for i in range(most):
        if mine[i] != theirs[start + i]:
            return i
    return most
