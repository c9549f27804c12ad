"""In which order waiting requests are looked at."""

from collections.abc import Sequence

from sglang.srt.managers.limits import PolicyName
from sglang.srt.managers.request import Request
from sglang.srt.mem_cache.cache_manager import CacheManager


def ordered(waiting: Sequence[Request], policy: PolicyName, cache: CacheManager) -> list[Request]:
    """The waiting requests, first to be admitted first; ties keep their arrival order.

    The queue itself is sorted by priority, where that is the policy, and arrival. lpm: longest cached prefix first.
    """
    if policy == "lpm":
        return sorted(waiting, key=lambda request: -cache.match_tokens(request.tokens))
    return list(waiting)
