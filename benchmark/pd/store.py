"""The results of a set-up under a shape: one file each, grown point by point, so that a run can go on another day."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from machine import Record, describe, load, load_all, results, save
from pd.points import Point
from pd.setups import Setup, Shape

FOLDER = results("disagg_vs_mixed")
SWEEP = "sweep"
"""The load of the chunk sweep: the middle rate of a shape, for fewer seconds than the points that are compared."""


class Store:
    """Results of one model."""

    def __init__(self, model: str, folder: Path = FOLDER) -> None:
        self._folder = folder / model

    def file(self, shape: str, setup: str) -> Path:
        """Where a set-up's record lies."""
        plain = setup.replace(" ", "_").replace(",", "").replace(":", "").replace("+", "-")
        return self._folder / shape / f"{plain}.json"

    def record(self, shape: Shape, setup: Setup) -> Record:
        """What is there, or an empty record."""
        path = self.file(shape.name, setup.name)
        if path.is_file():
            return load(path)
        return {"setup": setup.name, "shape": shape.name, "flags": [setup.flags, setup.decode_flags], "loads": {}}

    def add(self, shape: Shape, setup: Setup, load: str, point: Point) -> None:
        """Keep a point: `idle`, the sweep's, or the rate in requests a second."""
        record = self.record(shape, setup)
        record["loads"][load] = {**point, "machine": describe()}
        save(self.file(shape.name, setup.name), record)

    def missing(self, shape: Shape, setup: Setup, loads: list[str]) -> list[str]:
        """Those of `loads` that have no point yet."""
        there = self.record(shape, setup)["loads"]
        return [load for load in loads if load not in there]

    def records(self, shape: str) -> Iterator[Record]:
        """All records of a shape."""
        return load_all(self._folder / shape)


def median_tps(point: dict[str, Any]) -> float:
    """Tokens a second that the median user sees after the first."""
    return tps_quantile(point, 50)


def tps_quantile(point: dict[str, Any], percent: float) -> float:
    """The tokens a second that all but `percent` % of users exceed: p99 is a bad user's. 0 without answers."""
    import numpy as np

    times = [time for time in point["tpot_ms"] if time]
    return 1e3 / float(np.percentile(times, percent)) if times else 0.0
