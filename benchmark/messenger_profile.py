"""Where does a job's time go? What the threads that carry one of messenger.py's jobs spend on a CPU, and asleep.

    python benchmark/messenger_profile.py [--provider mapped] [--pages 65536] [--runs] [--idle MS] [--cold MIB]

For pyfabric the two workers, for the raw loop its processes; per job, medians over the rounds. "on CPU" and "waiting"
(for a CPU that others hold) are the kernel's words (/proc/PID/task/TID/schedstat), "sleeps" voluntary switches. What
is left of a job's wall time is spent asleep. --idle and --cold give every job the start that it has where other
contenders ran in between: threads long asleep, and caches and page tables full of other memory.
"""

import argparse
import os
import re
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from messenger_jobs import Memory, make_job
from messenger_pairs import Contender, Pair, Raw, Script, Transfer, build_raw


@dataclass(frozen=True, slots=True)
class Use:
    """Of one thread since it began: ns on a CPU, ns waiting for one, times it went to sleep."""

    running: int
    waiting: int
    sleeps: int

    @classmethod
    def of(cls, task: Path) -> Self:
        running, waiting, _ = map(int, (task / "schedstat").read_text().split())
        found = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", (task / "status").read_text(), re.MULTILINE)
        return cls(running, waiting, int(found[1]) if found else 0)

    def since(self, before: "Use") -> "Use":
        return Use(self.running - before.running, self.waiting - before.waiting, self.sleeps - before.sleeps)


def tasks(pid: int, name: str) -> list[Path]:
    found = Path("/proc", str(pid), "task").iterdir()
    return [task for task in found if (task / "comm").read_text().strip() == name]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def measure(contender: Contender, threads: Mapping[str, Path], rounds: int) -> Iterator[tuple[float, dict[str, Use]]]:
    """Seconds and every thread's use, a job each."""
    for _ in range(rounds):
        before = {name: Use.of(task) for name, task in threads.items()}
        seconds = contender.seconds()
        yield seconds, {name: Use.of(task).since(before[name]) for name, task in threads.items()}


def show(name: str, nbytes: int, found: list[tuple[float, dict[str, Use]]]) -> None:
    wall = statistics.median(seconds for seconds, _ in found)
    print(f"{name:18} wall {wall * 1e3:6.1f} ms, {nbytes / wall / 1e9:5.2f} GB/s", flush=True)
    for thread in found[0][1]:
        uses = [use[thread] for _, use in found]
        running, waiting = (
            statistics.median(getattr(u, field) for u in uses) / 1e6 for field in ("running", "waiting")
        )
        sleeps = statistics.median(u.sleeps for u in uses)
        print(f"  {thread:16} on CPU {running:6.1f} ms, waiting {waiting:5.1f} ms, sleeps {sleeps:.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", default="mapped")
    parser.add_argument("--pages", default="65536")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--runs", action="store_true", help="half of the pages in runs of 8")
    parser.add_argument("--idle", type=int, default=0, help="ms of sleep before each job")
    parser.add_argument("--cold", type=int, default=0, help="MiB of other memory touched before each job")
    args = parser.parse_args()
    other = np.ones(args.cold << 20, np.uint8)
    memory: Memory = "memfd" if args.provider == "mapped" else "small"
    with ExitStack() as stack:
        raw = stack.enter_context(Raw(build_raw(), "copy" if args.provider == "mapped" else args.provider, memory))
        pair = Pair(args.provider, memory)
        stack.callback(pair.close)
        (sender,), (receiver,) = (tasks(pid, "pyfabric") for pid in (os.getpid(), pair.child.process.pid))
        loop = dict(zip(("sender", "receiver"), [raw.process.pid, *children(raw.process.pid)], strict=False))
        for size in map(int, args.pages.split(",")):
            job = make_job(size, runs=args.runs)
            form = "nontemporal" if args.provider == "mapped" else "write"
            extents = 1 if args.provider == "mapped" else 4
            contenders: dict[str, tuple[Contender, dict[str, Path]]] = {
                "pyfabric": (Transfer(pair, job), {"sender": sender, "receiver": receiver}),
                "raw": (
                    Script(raw, job.script(form, extents, merge=True)),
                    {name: Path(f"/proc/{pid}/task/{pid}") for name, pid in loop.items()},
                ),
            }
            print(f"{args.provider}, pages of {size // 1024}K", flush=True)
            found: dict[str, list[tuple[float, dict[str, Use]]]] = {name: [] for name in contenders}
            for turn in range(args.rounds + 1):
                for name, (contender, threads) in contenders.items():
                    other[::64] += 1
                    time.sleep(args.idle / 1e3)
                    taken = list(measure(contender, threads, 1))
                    found[name] += taken if turn else []
            for name, taken in found.items():
                show(name, job.nbytes, taken)


if __name__ == "__main__":
    main()
