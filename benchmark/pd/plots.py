"""Figures of disagg_vs_mixed.py."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np

from machine import Record
from pd.store import median_tps, tps_quantile
from pd.summary import Curve, Objectives

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure


def draw_loads(title: str, curves: Sequence[Curve], bounds: Objectives | None, path: Path) -> None:
    """Speed of a user, p99 gap, TTFT and share inside the objectives, over the load; idle at 0."""
    figure, panels = plt.subplots(2, 2, figsize=(11, 7.5))
    for each in curves:
        style = "-" if "P:" in each.name else ":" if each.name.startswith("vllm") else "--"
        rates = (0.0, *each.rates)
        points = (each.idle, *each.points)
        (line,) = panels[0][0].plot(rates, [median_tps(p) for p in points], style, marker="o", ms=4, label=each.name)
        colour = line.get_color()
        worst = [tps_quantile(p, 90) for p in points]
        panels[0][0].fill_between(rates, worst, [median_tps(p) for p in points], color=colour, alpha=0.08)
        panels[0][1].plot(rates, [p["itl_ms"]["p99"] for p in points], style, marker="o", ms=4, color=colour)
        panels[1][0].plot(rates, [np.median(p["ttft_ms"]) for p in points], style, marker="o", ms=4, color=colour)
        if bounds:
            panels[1][1].plot(rates, [100 * bounds.share(p) for p in points], style, marker="o", ms=4, color=colour)
    titles = (
        "tok/s of the median user (band: to p90)",
        "p99 ITL, ms",
        "median TTFT, ms",
        "% of requests inside both SLO",
    )
    for axes, name in zip(panels.flat, titles, strict=True):
        axes.set(title=name, xlabel="requests/s offered")
        axes.grid(alpha=0.3)
    panels[0][1].set_yscale("log")
    panels[1][0].set_yscale("log")
    panels[1][1].axhline(90, color="black", lw=0.8, ls=":")
    panels[0][0].legend(fontsize=8)
    figure.suptitle(title)
    _write(figure, path)


def draw_victims(victims: Sequence[Record], path: Path) -> None:
    """The gaps between one user's tokens while other users' prompts are computed, one panel a set-up."""
    figure, panels = plt.subplots(len(victims), 1, figsize=(10, 1.9 * len(victims)), sharex=True, squeeze=False)
    for axes, victim in zip(panels[:, 0], victims, strict=True):
        times = victim["arrival_s"]
        axes.plot(times[1:], np.diff(times) * 1e3, ".", ms=3)
        axes.axvspan(0, victim["busy_s"], color="tab:orange", alpha=0.15)
        axes.set(yscale="log", ylabel="ITL, ms", title=victim["setup"])
        axes.grid(alpha=0.3)
    panels[-1, 0].set(xlabel="s (shaded: prompts of 2,048 tokens are being computed for other users)")
    _write(figure, path)


def _write(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
