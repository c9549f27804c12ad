"""The waiting queue: bounded, ordered by policy, with groups whose prompt is computed once."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

from sglang.srt.managers.limits import PolicyName
from sglang.srt.managers.policy import ordered
from sglang.srt.managers.request import Request
from sglang.srt.mem_cache.cache_manager import CacheManager

LOOKAHEAD = 128
"""Requests looked at for one step. lpm orders only so many: matching every waiting prompt for every step would take
longer than the step.
"""


@dataclass(slots=True)
class _Group:
    members: int = 0
    leader: Request | None = None
    """Computes the prompt for all of them."""
    cached: bool = False
    """The leader is over and its prompt was cached."""


class WaitingQueue:
    """Requests that hold nothing yet."""

    def __init__(self, policy: PolicyName) -> None:
        self._policy = policy
        self._serials = count()
        self._waiting: list[Request] = []
        """Sorted by `place`."""
        self._groups: dict[str, _Group] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter(tuple(self._waiting))

    def add(self, request: Request) -> None:
        """A new request, at the end of its priority."""
        request.place = (-request.priority if self._policy == "priority" else 0, next(self._serials))
        self._waiting.append(request)
        if len(self._waiting) > 1 and self._waiting[-2].place > request.place:
            insort(self._waiting, self._waiting.pop(), key=_place)
        if request.group:
            self._groups.setdefault(request.group, _Group()).members += 1

    def push_front(self, request: Request) -> None:
        """One that had been admitted once, at its old place: before all that came later."""
        insort(self._waiting, request, key=_place)

    def remove(self, request: Request) -> None:
        """Take one out; raises ValueError where it does not wait."""
        index = bisect_left(self._waiting, request.place, key=_place)
        if index == len(self._waiting) or self._waiting[index] is not request:
            raise ValueError(f"request {request.rid} does not wait")
        del self._waiting[index]

    def due(self, now: float, cache: CacheManager) -> Iterator[tuple[Request, bool]]:
        """(request, leader done) in the policy's order: those that may be admitted now.

        While the leader of a group computes the prompt, the others of the group wait for its pages.
        """
        ready = islice((r for r in self._waiting if not (r.compiling or r.not_before > now)), LOOKAHEAD)
        for request in ordered(list(ready), self._policy, cache):
            group = self._groups.get(request.group)
            if group is None or group.leader is request or (group.leader is None and not group.cached):
                yield request, False
            elif group.cached or (group.leader is not None and cached_prompt(group.leader)):
                yield request, True

    def lead(self, request: Request) -> None:
        """Called at admission: the first of a group becomes its leader."""
        group = self._groups.get(request.group)
        if group is not None and group.leader is None and not group.cached:
            group.leader = request

    def over(self, request: Request) -> None:
        """The request is over; where it led a group and its prompt is not cached, another will lead."""
        group = self._groups.get(request.group)
        if group is None:
            return
        group.members -= 1
        if group.leader is request:
            group.leader, group.cached = None, cached_prompt(request)
        if group.members == 0:
            del self._groups[request.group]

    def next_due(self, now: float) -> float:
        """The earliest time at which a request that is not due becomes so; infinity where none waits for a time."""
        first = islice(self._waiting, LOOKAHEAD)
        return min((r.not_before for r in first if r.not_before > now), default=float("inf"))


def _place(request: Request) -> tuple[int, int]:
    return request.place


def cached_prompt(leader: Request) -> bool:
    """Whether the whole pages of a group's prompt are in the prefix tree."""
    return leader.computed >= leader.prompt_length - 1
