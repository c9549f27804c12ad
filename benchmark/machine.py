"""Where and when something was measured, and the files that measurements are kept in."""

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import sglang

Record = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmark" / "results"
FIGURES = ROOT / "docs" / "img"


def describe() -> dict[str, str]:
    """Processor, cores, kernel, date and commit of this run, and the load average of its last minute."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    cores = sum(line.startswith("processor") for line in lines)
    wanted = ("avx2", "avx512_bf16", "avx512_vnni", "amx_tile")
    found = [flag for flag in wanted if flag in facts.get("flags", "").split()]
    return {
        "cpu": facts.get("model name", "unknown"),
        "family": f"{facts.get('cpu family', '?')}/{facts.get('model', '?')}",
        "cores": str(cores),
        "features": " ".join(found),
        "kernel": Path("/proc/sys/kernel/osrelease").read_text().strip(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": commit(),
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def name_of(machine: dict[str, str]) -> str:
    """A folder's name for machines of the same kind: figures of two kinds never meet in one table."""
    return f"{machine['cpu']} {machine['family']} {machine['cores']}c".lower().replace("/", "-").replace(" ", "-")


def results(question: str) -> Path:
    """Where the records of a question lie that were measured on this kind of machine."""
    return RESULTS / question / name_of(describe())


def machine_line(machine: dict[str, str]) -> str:
    """A description in one line."""
    kept = "commit {commit}, load {load}".format(**machine)
    return f"{machine['cpu']} ({machine['features']}), {machine['cores']} cores, {machine['date']}, {kept}"


def commit() -> str:
    """Short hash of the checkout that `sglang` is imported from, with a + where its files have changed."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no", "python") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    checkout = Path(sglang.__file__).parents[2]
    return subprocess.run(["git", *arguments], cwd=checkout, check=True, capture_output=True, text=True).stdout.strip()


def save(path: Path, record: Mapping[str, object]) -> None:
    """Write one record, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1) + "\n")
    part.replace(path)


def load(path: Path) -> Record:
    """One record."""
    record: Record = json.loads(path.read_text())
    return record


def load_all(folder: Path) -> Iterator[Record]:
    """Every record under a folder, in the order of their paths."""
    for path in sorted(folder.rglob("*.json")):
        yield load(path)


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows]]
    return "\n".join(lines)
