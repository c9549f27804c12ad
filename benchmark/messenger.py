"""How close does pyfabric come to the wire, and to memory? N scattered pages of P bytes, 30 layers, two processes.

    python benchmark/messenger.py [--providers tcp,shm,mapped] [--pages 4096,...] [--rounds 9] [--json FILE]
    python benchmark/messenger.py --others build/contenders/bin/python ...     # NIXL and Mooncake too: make contenders
    python benchmark/messenger.py --micro            # cost of arm(), counter to first post, small writes a second

Every figure that counts is a ratio: the contenders of a case take turns within a second or two, and the median over
the rounds is printed. "raw" is native/raw.cpp: the same provider and window, extents cut in the same way ("same shape")
or one write a page.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import messenger_micro
import pyfabric
from messenger_jobs import LAYERS, Memory, make_job
from messenger_pairs import Contender, Foreign, NumpyCopy, Pair, Raw, Script, Transfer, build_raw

INJECTED = 4096
"""Bytes that shm carries inside its own command: pages up to this size travel alone (program.cpp)."""
SIZES = (4096, 16384, 32768, 65536, 262144)


@dataclass(frozen=True, slots=True)
class Row:
    """One case. `rates` in GB/s, medians; `ratios` of pyfabric to each other contender, medians over the rounds."""

    provider: str
    memory: str
    page_bytes: int
    pages: int
    runs: bool
    rates: dict[str, float]
    ratios: dict[str, float]
    spread: dict[str, tuple[float, float]]
    """Smallest and largest of the rounds' ratios."""


def compare(
    contenders: Mapping[str, Contender], nbytes: int, rounds: int
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Medians of GB/s, and every round's ratio of the first contender to each other. One unmeasured round first.

    Each round begins with another contender, so that nobody is always the one that comes after a certain other.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(rounds + 1):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            took = contenders[name].seconds()
            if turn:
                seconds[name].append(took)
    first, *others = seconds
    ratios = {o: [b / a for a, b in zip(seconds[first], seconds[o], strict=True)] for o in others}
    return {name: nbytes / statistics.median(s) / 1e9 for name, s in seconds.items()}, ratios


def open_others(stack: ExitStack, python: Path | None, provider: str, memory: Memory) -> dict[str, Foreign]:
    """The other libraries that move bytes by the same means; one that does not start is reported and left out."""
    if python is None:
        return {}
    tcp = provider == "tcp"
    kinds = {"NIXL": "nixl", "NIXL, progress thread": "nixl-thread"} | ({"Mooncake": "mooncake"} if tcp else {})
    found: dict[str, Foreign] = {}
    for name, kind in kinds.items():
        environment = {"UCX_TLS": "tcp"} if tcp and kind != "mooncake" else {}
        try:
            found[name] = stack.enter_context(Foreign(python, kind, memory, environment))
        except RuntimeError as error:
            print(f"{name} over {provider}: not run: {error}", flush=True)
    return found


def rows(
    provider: str, memory: Memory, sizes: tuple[int, ...], rounds: int, binary: Path, others: Path | None
) -> Iterator[Row]:
    with ExitStack() as stack:
        foreign = open_others(stack, others, provider, memory)
        raw = stack.enter_context(Raw(binary, "copy" if provider == "mapped" else provider, memory))
        pair = Pair(provider, memory)
        stack.callback(pair.close)
        for size in sizes:
            for runs in (False, True):
                job = make_job(size, runs=runs)
                contenders: dict[str, Contender] = {"pyfabric": Transfer(pair, job)}
                if provider == "mapped":
                    contenders["non-temporal copy"] = Script(raw, job.script("nontemporal", 1, merge=False))
                    contenders["memcpy"] = Script(raw, job.script("memcpy", 1, merge=False))
                    contenders["numpy"] = stack.enter_context(closing(NumpyCopy(memory, job)))
                else:
                    extents = 1 if size <= INJECTED and provider == "shm" else 4
                    contenders["raw, same shape"] = Script(raw, job.script("write", extents, merge=True))
                    contenders["raw, one a page"] = Script(raw, job.script("write", 1, merge=False))
                    if provider == "shm":
                        contenders["raw, four a write"] = Script(raw, job.script("write", 4, merge=False))
                contenders |= {
                    name: Script(other, job.script("write", 1, merge=True)) for name, other in foreign.items()
                }
                rates, ratios = compare(contenders, job.nbytes, rounds)
                spread = {name: (min(r), max(r)) for name, r in ratios.items()}
                medians = {name: statistics.median(r) for name, r in ratios.items()}
                yield Row(provider, memory, size, len(job.source) * LAYERS, runs, rates, medians, spread)


def show(row: Row) -> str:
    rates = "  ".join(f"{name} {rate:.2f}" for name, rate in row.rates.items())
    ratios = "  ".join(f"x{ratio:.2f} of {name}" for name, ratio in row.ratios.items())
    kind = "runs" if row.runs else "scattered"
    return f"{row.provider:7}{row.memory:11}{row.page_bytes // 1024:4}K {kind:10} {rates} GB/s | {ratios}"


def machine() -> dict[str, Any]:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if "model name" in line
    ]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "libfabric": pyfabric.LIBRARY.path.name + " " + pyfabric.LIBRARY.origin,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load_average": os.getloadavg(),
        "command": "python " + " ".join(["benchmark/messenger.py", *sys.argv[1:]]),
    }


def save(path: Path | None, result: dict[str, Any]) -> None:
    """After every row: a run that is cut short has not been for nothing."""
    result["machine"]["load_average_at_end"] = os.getloadavg()
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--providers", default="tcp,shm,mapped")
    parser.add_argument("--memory", choices=get_args(Memory), help="default: small; memfd for mapped")
    parser.add_argument("--pages", default=",".join(map(str, SIZES)), help="page sizes in bytes")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--others", type=Path, help="the Python that NIXL and Mooncake are installed for")
    parser.add_argument("--micro", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {"machine": machine()}
    if args.micro:
        result["micro"] = messenger_micro.measure()
        print(json.dumps(result["micro"], indent=1), flush=True)
    else:
        binary = build_raw()
        sizes = tuple(int(size) for size in args.pages.split(","))
        found = result["rows"] = []
        for provider in args.providers.split(","):
            memory: Memory = args.memory or ("memfd" if provider == "mapped" else "small")
            for row in rows(provider, memory, sizes, args.rounds, binary, args.others):
                print(show(row), flush=True)
                found.append(asdict(row))
                save(args.json, result)
    save(args.json, result)


if __name__ == "__main__":
    main()
