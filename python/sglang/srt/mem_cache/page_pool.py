"""Free pages of one engine replica. Integers only: every rank's pool has the same page numbers."""

from collections.abc import Iterable

from sglang.srt.errors import EngineError


class PagePool:
    """Hands out page numbers and takes them back; a page is never out twice.

    Pages come out in ascending runs while the pool is fresh, because runs of consecutive pages travel as one write.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ValueError(f"a pool needs at least one page, not {num_pages}")
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._out = bytearray(num_pages)

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` pages; raises EngineError when fewer are free (callers ask first)."""
        if count > len(self._free):
            raise EngineError(f"{count} pages wanted, {len(self._free)} free of {self.num_pages}")
        if count == 0:
            return []
        pages = self._free[-count:][::-1]
        del self._free[-count:]
        for page in pages:
            self._out[page] = 1
        return pages

    def give(self, pages: Iterable[int]) -> None:
        """Take pages back; raises EngineError for a page that is not out, which would hand it to two owners later."""
        for page in sorted(pages, reverse=True):
            if not self._out[page]:
                raise EngineError(f"page {page} given back twice")
            self._out[page] = 0
            self._free.append(page)
