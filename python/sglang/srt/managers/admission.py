"""Whether a waiting request gets pages now."""

from collections.abc import Iterable

from sglang.srt.core.states import RequestState
from sglang.srt.managers.limits import Limits
from sglang.srt.managers.request import Request
from sglang.srt.mem_cache.cache_manager import CacheManager, PageLease

HOLDING = (RequestState.RUNNING, RequestState.PREFILLING, RequestState.TRANSFERRING)


def reuse_limit(request: Request, samples: bool) -> int:
    """Tokens of a request whose cached KV may be used: all but the last where this engine must compute its logits, and
    only those before the first position whose logits the client wants.
    """
    if not samples:
        return len(request.tokens)
    return len(request.tokens) - 1 if request.unscored < 0 else request.unscored


def grown_pages(cache: CacheManager, limits: Limits, request: Request) -> int:
    """Pages that a request is expected to hold before it ends."""
    return cache.pages_for(len(request.tokens) + limits.growth(request.limit - request.generated))


def reserve(
    cache: CacheManager, limits: Limits, request: Request, lease: PageLease, tokens: int, holders: Iterable[Request]
) -> bool:
    """Grow `lease` to `tokens` tokens if that leaves the requests that hold pages their expected growth.

    With nobody else holding pages the request only has to fit. Nothing changes where the answer is no.
    """
    others = [other for other in holders if other.state in HOLDING and other.lease is not None]
    if others:
        growth = sum(max(0, grown_pages(cache, limits, r) - len(r.lease.pages)) for r in others if r.lease)
        mine = max(cache.pages_for(tokens), grown_pages(cache, limits, request)) - len(lease.pages)
        if mine + growth > cache.available:
            return False
    return cache.extend(lease, tokens) is not None
