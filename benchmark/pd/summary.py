"""What the points of a shape say: goodput, and both worlds at the load where mixing has halved a user's speed."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from machine import Record, markdown
from pd.store import SWEEP, median_tps, tps_quantile

TTFT_SLACK, TPOT_SLACK = 2.5, 1.5
"""Objectives as multiples of what an idle engine of one core needs (DistServe, OSDI 2024, likewise derives its
objectives from the latency of an unloaded system): goodput is the highest load at which 90% of requests meet both."""
GOOD_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Curve:
    """One set-up under rising load."""

    name: str
    idle: Record
    rates: tuple[float, ...]
    points: tuple[Record, ...]

    def at(self, rate: float, values: Sequence[float]) -> float:
        """`values`, one a rate, at a rate between: linear; at the ends the nearest."""
        return float(np.interp(rate, self.rates, values))

    def half_load(self) -> float | None:
        """The lowest load at which the median user has half of the idle speed; None where that was not reached."""
        wanted = median_tps(self.idle) / 2
        last_rate, last_value = 0.0, median_tps(self.idle)
        for rate, point in zip(self.rates, self.points, strict=True):
            value = median_tps(point)
            if value <= wanted:
                return last_rate + (rate - last_rate) * (last_value - wanted) / (last_value - value)
            last_rate, last_value = rate, value
        return None


def curve(record: Record) -> Curve | None:
    """The curve of a record with an idle point and at least one rate."""
    loads = dict(record["loads"])
    idle = loads.pop("idle", None)
    loads.pop(SWEEP, None)
    if idle is None or not loads:
        return None
    pairs = sorted((float(rate), point) for rate, point in loads.items())
    return Curve(record["setup"], idle, tuple(rate for rate, _ in pairs), tuple(point for _, point in pairs))


@dataclass(frozen=True, slots=True)
class Objectives:
    """Upper bounds in milliseconds."""

    ttft: float
    tpot: float

    def share(self, point: Record) -> float:
        """Share of the offered requests inside both."""
        pairs = zip(point["ttft_ms"], point["tpot_ms"], strict=True)
        good = sum(1 for ttft, tpot in pairs if ttft <= self.ttft and tpot <= self.tpot)
        return good / max(1, int(point["completed"]) + int(point["failed"]))


def objectives(curves: Sequence[Curve]) -> Objectives | None:
    """From the idle point of the engines of one core; None where they were not measured."""
    for candidate in curves:
        if candidate.name.startswith("mixed 1c+1c"):
            ttft, tpot = (float(np.median(candidate.idle[key])) for key in ("ttft_ms", "tpot_ms"))
            return Objectives(TTFT_SLACK * ttft, TPOT_SLACK * tpot)
    return None


def goodput(candidate: Curve, bounds: Objectives) -> float:
    """Requests a second: the highest load, between measured ones, up to which 90% of requests meet both bounds."""
    best, last_rate, last_share = 0.0, 0.0, 1.0
    for rate, point in zip(candidate.rates, candidate.points, strict=True):
        share = bounds.share(point)
        if share < GOOD_SHARE:
            return last_rate + (rate - last_rate) * (last_share - GOOD_SHARE) / (last_share - share)
        best, last_rate, last_share = rate, rate, share
    return best


def load_table(curves: Sequence[Curve], bounds: Objectives | None) -> str:
    """Every point: TTFT, ITL, TPOT, speed of users, share inside the objectives."""
    header = ["set-up", "req/s", "n", "TTFT p50 / p90 / p99, ms", "ITL p50 / p99, ms", "TPOT p50, ms"]
    header += ["tok/s of a user p50 / p90 / p99", "inside SLO"]
    rows = []
    for each in curves:
        for rate, point in [("idle", each.idle), *zip(map(str, each.rates), each.points, strict=True)]:
            ttft = " / ".join(f"{np.percentile(point['ttft_ms'], q):.0f}" for q in (50, 90, 99))
            users = " / ".join(f"{tps_quantile(point, q):.1f}" for q in (50, 90, 99))
            itl = f"{point['itl_ms']['p50']:.1f} / {point['itl_ms']['p99']:.1f}"
            share = f"{bounds.share(point):.0%}" if bounds else "-"
            failed = f" ({point['failed']} failed)" if point["failed"] else ""
            tpot = f"{np.median(point['tpot_ms']):.1f}"
            rows.append([each.name, rate, f"{point['completed']}{failed}", ttft, itl, tpot, users, share])
    return markdown(header, rows)


def verdict(mixed: Curve, split: Curve) -> list[str]:
    """A row: the disaggregated set-up where `mixed` has lost half of a user's speed."""
    half = mixed.half_load()
    penalty = float(np.median(split.idle["ttft_ms"]) - np.median(mixed.idle["ttft_ms"]))
    step = float(np.median(split.idle["tpot_ms"]))
    idle = f"{penalty:+.0f} ms (a decode step: {step:.0f})"
    if half is None or half > split.rates[-1]:
        at = f"not reached up to {mixed.rates[-1]:g}"
        return [split.name, mixed.name, at, "-", "-", "-", idle]
    speed = [curve.at(half, [median_tps(point) for point in curve.points]) for curve in (mixed, split)]
    gaps = [curve.at(half, [point["itl_ms"]["p99"] for point in curve.points]) for curve in (mixed, split)]
    waits = [curve.at(half, [float(np.median(p["ttft_ms"])) for p in curve.points]) for curve in (mixed, split)]
    return [
        split.name,
        mixed.name,
        f"{half:.2f}",
        f"{speed[0]:.0f} -> {speed[1]:.0f} ({speed[1] / speed[0]:.2f}x)",
        f"{gaps[0]:.0f} -> {gaps[1]:.0f} ({gaps[0] / gaps[1]:.1f}x lower)",
        f"{waits[0]:.0f} -> {waits[1]:.0f}",
        idle,
    ]


def verdicts(curves: Sequence[Curve]) -> str:
    """Every disaggregated set-up against every mixed one, vLLM's among them."""
    header = ["set-up", "against", "half load, req/s", "tok/s of the median user", "p99 ITL, ms"]
    header += ["median TTFT there, ms", "median TTFT when idle"]
    mixed = [each for each in curves if each.name.startswith(("mixed", "vllm"))]
    split = [each for each in curves if "P:" in each.name]
    return markdown(header, [verdict(m, s) for s in split for m in mixed])


def goodputs(curves: Sequence[Curve], bounds: Objectives) -> str:
    """Goodput by set-up."""
    rows = [[each.name, f"{goodput(each, bounds):.2f}"] for each in curves]
    title = f"goodput, req/s (TTFT <= {bounds.ttft:.0f} ms, TPOT <= {bounds.tpot:.1f} ms)"
    return markdown(["set-up", title], rows)
