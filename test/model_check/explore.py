"""Every world that can be reached, and which of them lead nowhere."""

from collections import deque
from dataclasses import dataclass

from model_check.model import Model
from model_check.world import Violation, World


@dataclass(frozen=True, slots=True)
class Explored:
    """Every reachable world, and the fault-free ways between them."""

    worlds: int
    ends: int
    served: int
    stuck: tuple[World, ...]
    """Worlds from which, without a further fault, nothing leads to rest."""
    estranged: tuple[World, ...]
    """Worlds from which the two engines can never work together again."""


def explore(model: Model, start: World, most: int = 4_000_000) -> Explored:
    """Breadth first from `start`; raises Violation with the shortest way that leads to one."""
    numbers: dict[World, int] = {start: 0}
    worlds: list[World] = [start]
    came_from: list[int] = [-1]
    back: list[list[int]] = [[]]
    queue = deque([0])
    while queue:
        here = queue.popleft()
        try:
            for fault, world in model.successors(worlds[here]):
                there = numbers.get(world)
                if there is None:
                    there = numbers[world] = len(worlds)
                    worlds.append(world)
                    came_from.append(here)
                    back.append([])
                    queue.append(there)
                    assert there < most, "the state space is larger than meant"
                if not fault:
                    back[there].append(here)
        except Violation as violation:
            raise Violation(f"{violation}\n" + _path(worlds, came_from, here)) from violation
    settled = [i for i, world in enumerate(worlds) if world.settled]
    acquainted = [i for i, world in enumerate(worlds) if world.acquainted]
    return Explored(
        worlds=len(worlds),
        ends=len(settled),
        served=sum(world.served > 0 for world in worlds),
        stuck=_cannot_reach(worlds, back, settled),
        estranged=_cannot_reach(worlds, back, acquainted),
    )


def _cannot_reach(worlds: list[World], back: list[list[int]], goals: list[int]) -> tuple[World, ...]:
    reached = set(goals)
    stack = list(goals)
    while stack:
        for before in back[stack.pop()]:
            if before not in reached:
                reached.add(before)
                stack.append(before)
    return tuple(world for i, world in enumerate(worlds) if i not in reached)


def _path(worlds: list[World], came_from: list[int], last: int) -> str:
    steps = []
    while last >= 0:
        steps.append(repr(worlds[last]))
        last = came_from[last]
    return "\n".join(reversed(steps))
