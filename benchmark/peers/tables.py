"""What engine_vs_peers.py measured, as tables and a figure."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from machine import Record, machine_line, markdown
from peers.limits import Limits, Shape, decode_rate, prefill_rate


def rate(record: Record, case: str, seconds: float) -> float:
    """Tokens a second of one sample of a case, such as `prefill 512` or `decode 4`."""
    kind, number = case.split()
    return int(number) * (record["steps"] if kind == "decode" else 1) / seconds


def limit(record: Record, case: str, limits: Limits) -> float:
    """Most tokens a second of a case on this machine."""
    kind, number = case.split()
    shape = Shape(**record["shape"])
    if kind == "prefill":
        return prefill_rate(shape, int(number), limits)
    return decode_rate(shape, int(number), record["context"], limits)


def best_peer(record: Record, case: str) -> str | None:
    """The fastest other contender of a case, by medians; None where nobody else ran."""
    samples = record["samples"][case]
    others = {name: statistics.median(times) for name, times in samples.items() if name != "ours"}
    return min(others, key=lambda name: others[name]) if others else None


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """How many times faster: median of the rounds' ratios (least to most)."""
    each = [b / a for a, b in zip(ours, theirs, strict=False)]
    return f"{statistics.median(each):.2f} ({min(each):.2f}-{max(each):.2f})"


def render(record: Record, limits: Limits) -> str:
    """Tokens a second by contender, ours against the best of the others, and against the machine."""
    names = [name for name in record["versions"] if name not in record["not_run"]]
    rows = []
    for case, samples in record["samples"].items():
        cells = [f"{_median(record, case, samples.get(name)):.1f}" if name in samples else "-" for name in names]
        best = best_peer(record, case)
        against = f"{ratios(samples['ours'], samples[best])} {best}" if best and "ours" in samples else "-"
        most = limit(record, case, limits)
        share = f"{_median(record, case, samples['ours']) / most:.0%} of {most:.0f}" if "ours" in samples else "-"
        rows.append([case, *cells, against, share])
    peaks = [f"{record['peak_bytes'][name] / 1e6:.0f}" for name in names]
    rows.append(["peak memory, MB", *peaks, "", f"weights and KV {record['needed_bytes'] / 1e6:.0f} MB"])
    table = markdown([record["model"], *names, "ours / best peer (range)", "ours of the limit"], rows)
    missing = [f"- not run: {name}: {reason}" for name, reason in record["not_run"].items()]
    said = [f"- {name}: {version}" for name, version in record["versions"].items() if name not in record["not_run"]]
    return "\n".join([machine_line(record["machine"]), "", table, "", *said, *missing])


def _median(record: Record, case: str, times: Sequence[float]) -> float:
    return rate(record, case, statistics.median(times))


def draw(records: Sequence[Record], limits: Limits, path: Path) -> None:
    """One panel a model and measure: bars by case and contender, the machine's limit as a line."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(records), figsize=(4.2 * len(records), 4), squeeze=False)
    for axes, record in zip(panels[0], records, strict=True):
        cases = list(record["samples"])
        names = [name for name in record["versions"] if name not in record["not_run"]]
        width = 0.8 / max(1, len(names))
        for index, name in enumerate(names):
            there = [i for i, case in enumerate(cases) if name in record["samples"][case]]
            heights = [_median(record, cases[i], record["samples"][cases[i]][name]) for i in there]
            places = [i - 0.4 + width * (index + 0.5) for i in there]
            axes.bar(places, heights, width, label=name)
        for i, case in enumerate(cases):
            axes.hlines(limit(record, case, limits), i - 0.45, i + 0.45, color="black", ls="--", lw=1)
        axes.set_xticks(range(len(cases)), cases)
        axes.set(title=record["model"], ylabel="tokens/s (dashed: the machine's limit)")
        axes.legend(fontsize=7)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
