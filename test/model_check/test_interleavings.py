"""Every interleaving of two engines over an unreliable channel, and each rule shown to be needed.

The default run takes a quarter of a minute here, the slow ones, which go one fault deeper, four minutes.
"""

import random
from dataclasses import replace

import pytest

from model_check.explore import Explored, explore
from model_check.model import RULES, Model
from model_check.world import Budget, Violation, World

NONE = Budget(loss=0, repeat=0, crash_p=0, crash_d=0, suspicion=0, write_error=0, leave=0)


def check(model: Model, budget: Budget) -> Explored:
    explored = explore(model, World(budget))
    assert not explored.stuck, explored.stuck[0]
    assert not explored.estranged, explored.estranged[0]
    assert explored.served, "no transfer ever succeeds: the model explores nothing"
    return explored


@pytest.mark.parametrize(
    ("faults", "transfers", "weight"),
    [
        ("", 2, 1),
        ("loss", 1, 2),
        ("write_error", 1, 2),
        ("repeat", 1, 2),
        ("suspicion", 1, 2),
        ("crash_p", 1, 2),
        ("loss repeat write_error", 1, 1),
        ("suspicion repeat", 1, 1),
        ("suspicion crash_p", 1, 1),
        ("leave", 1, 2),
        ("leave loss", 1, 1),
    ],
)
def test_no_late_write_no_second_end_no_stuck_slot(faults: str, transfers: int, weight: int) -> None:
    budget = replace(NONE, **dict.fromkeys(faults.split(), 1))
    check(Model(transfers=transfers, weight=weight), budget)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("faults", "transfers", "weight"),
    [
        ("", 2, 2),
        ("loss", 2, 1),
        ("write_error", 2, 1),
        ("crash_d", 1, 1),
        ("repeat", 2, 1),
        ("suspicion", 2, 1),
        ("crash_p repeat", 1, 1),
        ("suspicion crash_p repeat", 1, 1),
        ("leave", 2, 1),
        ("leave repeat", 1, 1),
        ("leave suspicion", 1, 1),
        ("leave crash_d", 1, 1),
    ],
)
def test_one_fault_deeper(faults: str, transfers: int, weight: int) -> None:
    budget = replace(NONE, **dict.fromkeys(faults.split(), 1))
    check(Model(transfers=transfers, weight=weight), budget)


@pytest.mark.parametrize("faults", ["crash_d", "leave repeat", "suspicion crash_p", "loss write_error"])
def test_what_is_left_out_of_a_world_makes_no_difference(faults: str) -> None:
    """Thousands of worlds of random walks on which nothing is left out: the same steps as from what is left of them."""
    model, walk = Model(transfers=1, weight=1), random.Random(faults)
    smaller = 0
    for _ in range(150):
        world = World(replace(NONE, **dict.fromkeys(faults.split(), 1)))
        for _ in range(40):
            less = model.reduced(world)
            smaller += less != world
            assert futures(model, world, less) == futures(model, less, less)
            ways = [there for _, there in model.steps(world) if len(there.messages) <= 8]
            if not ways:
                break
            world = walk.choice(ways)
    assert smaller > 500


def futures(model: Model, world: World, less: World) -> set[tuple[bool, World]]:
    """What can follow, reduced, from `world` and from where it gets by steps that make no difference."""
    same, found, queue = {world}, set(), [world]
    while queue:
        for fault, there in model.steps(queue.pop()):
            after = model.reduced(there)
            if after != less:
                found.add((fault, after))
            elif not fault and there not in same:
                same.add(there)
                queue.append(there)
    # To lose or to repeat what makes no difference only spends the budget for it.
    return found - {(True, replace(less, budget=replace(less.budget, **{kind: 0}))) for kind in ("loss", "repeat")}


RESTARTED = World(
    NONE, d_life=1, greeting=101, granted=True, peer=0, guest=True, known=((1, 101),), messages=(("drained", 0),)
)
"""A decode engine in its second life, while an answer to its first is still on the way."""

NEEDED = {
    "free only when nothing can land": (World(NONE), 1),
    "fence before reuse": (World(NONE), 1),
    "drained only when quiet": (World(NONE), 1),
    "an ask belongs to its grant": (World(NONE), 2),
    "an ask is obeyed once": (World(replace(NONE, repeat=1)), 1),
    "a cancel takes the number of its ask": (World(NONE), 1),
    "drained speaks for one life only": (World(replace(NONE, crash_p=1)), 1),
    "numbers differ between lives": (RESTARTED, 1),
    "grants differ between lives": (World(replace(NONE, crash_d=1)), 1),
    "nothing is asked of an engine that leaves": (World(replace(NONE, leave=1)), 1),
    "farewell is said when nothing is open": (World(replace(NONE, leave=1)), 1),
    "a farewell belongs to its grant": (World(replace(NONE, leave=1, suspicion=1)), 1),
    "an engine leaves after the farewell": (World(replace(NONE, leave=1)), 1),
}


@pytest.mark.parametrize("rule", sorted(RULES))
def test_without_the_rule_the_check_fails(rule: str) -> None:
    start, transfers = NEEDED[rule]
    with pytest.raises(Violation):
        explore(Model(transfers=transfers, weight=1, without=rule), start)
