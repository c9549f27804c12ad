"""The arithmetic behind the tables of disagg_vs_mixed.py."""

import pytest

from pd.setups import SHAPES, disaggregated, one_engine, two_engines
from pd.store import SWEEP, Store, median_tps
from pd.summary import Curve, Objectives, curve, goodput, objectives, verdict
from sglang.cluster.recipe import build_recipe


def point(tps: float, ttft: float = 100.0, p99: float = 20.0, slow: int = 0) -> dict[str, object]:
    """Ten requests; `slow` of them have ten times the TTFT."""
    return {
        "tpot_ms": [1e3 / tps] * 10,
        "ttft_ms": [ttft * 10] * slow + [ttft] * (10 - slow),
        "itl_ms": {"p50": 1e3 / tps, "p99": p99},
        "completed": 10,
        "failed": 0,
    }


def made(name: str, idle: float, *pairs: tuple[float, dict[str, object]]) -> Curve:
    return Curve(name, point(idle), tuple(rate for rate, _ in pairs), tuple(p for _, p in pairs))


def test_half_load_lies_between_the_points_around_it() -> None:
    mixed = made("mixed 2c", 100, (1.0, point(80)), (2.0, point(40)))
    assert mixed.half_load() == pytest.approx(1.75)
    assert made("mixed 2c", 100, (1.0, point(80))).half_load() is None
    assert made("mixed 2c", 100, (1.0, point(25))).half_load() == pytest.approx(2 / 3), "between idle and the first"


def test_the_verdict_compares_at_half_load() -> None:
    mixed = made("mixed 2c", 100, (1.0, point(80, p99=100)), (2.0, point(40, ttft=300, p99=300)))
    split = made("1P:1D", 90, (1.0, point(90, p99=20)), (2.0, point(86, ttft=500, p99=30)))
    row = verdict(mixed, split)
    assert row[2] == "1.75"
    assert row[3] == "50 -> 87 (1.74x)"
    assert row[4].startswith("250 -> 28 (")
    assert row[5] == "250 -> 400"


def test_the_verdict_says_where_mixing_costs_nothing() -> None:
    mixed, split = made("mixed 2c", 100, (1.0, point(95))), made("1P:1D", 90, (1.0, point(90)))
    assert verdict(mixed, split)[2] == "not reached up to 1"


def test_goodput_ends_at_the_first_load_below_ninety_percent() -> None:
    bounds = Objectives(ttft=150.0, tpot=15.0)
    falling = made("x", 100, (1.0, point(100)), (2.0, point(100, slow=2)), (3.0, point(100)))
    assert goodput(falling, bounds) == pytest.approx(1.5), "a later load that is met again does not count"
    assert goodput(made("x", 100, (1.0, point(100)), (2.0, point(100))), bounds) == 2.0
    assert goodput(made("x", 100, (1.0, point(50))), bounds) == pytest.approx(0.1), "every TPOT is too long"


def test_failed_requests_miss_their_objectives() -> None:
    bad = {**point(100), "failed": 10}
    assert Objectives(ttft=150.0, tpot=15.0).share(bad) == 0.5


def test_objectives_come_from_the_idle_engine_of_one_core() -> None:
    alone = made("mixed 1c+1c, chunk 64", 50, (1.0, point(40)))
    assert objectives([made("mixed 2c", 100, (1.0, point(40))), alone]) == Objectives(ttft=250.0, tpot=30.0)
    assert objectives([made("mixed 2c", 100, (1.0, point(40)))]) is None


def test_a_store_grows_point_by_point(tmp_path: object) -> None:
    store, shape, setup = Store("m", tmp_path), SHAPES["smollm2"][0], one_engine(64)  # type: ignore[arg-type]
    assert store.missing(shape, setup, ["idle", "0.1", SWEEP]) == ["idle", "0.1", SWEEP]
    store.add(shape, setup, "idle", point(100))
    assert curve(store.record(shape, setup)) is None, "no load yet"
    store.add(shape, setup, SWEEP, point(10))
    store.add(shape, setup, "0.1", point(80))
    (record,) = store.records(shape.name)
    grown = curve(record)
    assert grown and grown.rates == (0.1,), "the sweep is not a point of the curve"
    assert median_tps(grown.points[0]) == pytest.approx(80)
    assert store.missing(shape, setup, ["idle", "0.1", "0.2"]) == ["0.2"]


@pytest.mark.parametrize("setup", [one_engine(0), two_engines(64), disaggregated(), disaggregated(3, local=128)])
def test_every_setup_is_a_recipe_on_two_cores(setup: object) -> None:
    recipe = build_recipe(setup.recipe("folder", 4096, 48), "test")  # type: ignore[attr-defined]
    cores = [core for spec in recipe.engines for core in spec.config.cpu_cores]
    assert set(cores) == {0, 1}
    assert sum(spec.config.max_total_tokens for spec in recipe.frontends) in range(4000, 4097)
