"""Where does a decode step of the real engine spend its time? Linux's perf on the scheduler process while it decodes.

    python benchmark/server_profile.py benchmark/shapes/qwen3-0.6b-32k --tokenizer models/SmolLM2-135M-Instruct --rows 1

The engine is server_step.py's: its own process, scheduler, channel; random weights, every request decoding. perf
samples all threads of that process (cpu-clock, so waiting awake counts and sleeping does not). How long each thread
ran, and waited for a core, is what /proc/PID/task/TID/schedstat says; what remains of the time is sleep. Samples are
named by the function and the library that they lie in.
"""

import argparse
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from server_step import make_engine, random_prompts
from sglang.srt.entrypoints.scheduler_client import Unavailable

KINDS: tuple[tuple[str, str], ...] = (
    (r"_native.* .*linear", "products with weights"),
    (r"_native.* .*(decode|attend|chunk)", "attention over pages"),
    (r"_native.* .*(norm|gate|rotate|store|argmax|add_rows|turn_rows|look_up)", "norm, activation, rotary, store"),
    (r"_native.* .*(draw|descend|weigh|add_up|token_at)", "drawing tokens"),
    (r"_native.* .*Team::(await|work)|libgomp", "waiting awake for the other thread, or for work"),
    (r"_native", "the kernels' calls"),
    (r"libtorch|libc10", "torch"),
    (r"python|\[JIT\]|perf-", "Python"),
    (r"\[kernel|\[guest|vmlinux", "the operating system"),
    (r"", "other libraries"),
)
"""The first pattern that `library function` matches names a sample."""


class Thread(NamedTuple):
    """What a thread did in the time that was looked at, in seconds."""

    name: str
    ran: float
    queued: float
    """Ready to run, without a core."""


def scheduler_pid() -> int:
    """Of the engine that this process has started."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command, status = (entry / "cmdline").read_text(), (entry / "status").read_text()
            except OSError:
                continue
            if "scheduler_process" in command and f"PPid:\t{Path('/proc/self').resolve().name}\n" in status:
                return int(entry.name)
    raise RuntimeError("no scheduler process")


def schedstat(pid: int) -> dict[int, tuple[str, int, int]]:
    """Thread id -> (name, nanoseconds that it ran, nanoseconds that it waited for a core)."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        ran, queued, _ = (task / "schedstat").read_text().split()
        found[int(task.name)] = ((task / "comm").read_text().strip(), int(ran), int(queued))
    return found


def watch(pid: int, seconds: float, data: Path) -> tuple[float, dict[int, Thread]]:
    """Sample for some seconds; how long it took, and what each thread did."""
    before, began = schedstat(pid), time.monotonic()
    record = ["perf", "record", "-q", "-F", "999", "-e", "cpu-clock", "-p", str(pid), "-o", str(data)]
    subprocess.run([*record, "--", "sleep", str(seconds)], check=True, stderr=subprocess.DEVNULL)
    after, took = schedstat(pid), time.monotonic() - began
    threads = {}
    for tid, (name, ran, queued) in after.items():
        _, ran_before, queued_before = before.get(tid, ("", 0, 0))
        threads[tid] = Thread(name, (ran - ran_before) / 1e9, (queued - queued_before) / 1e9)
    return took, threads


def samples(data: Path) -> dict[int, Counter[str]]:
    """Thread id -> how many samples of each kind."""
    script = ["perf", "script", "-i", str(data), "-F", "tid,ip,sym,dso"]
    lines = subprocess.run(script, check=True, capture_output=True, text=True).stdout.splitlines()
    found: dict[int, Counter[str]] = {}
    for line in lines:
        match = re.match(r"\s*(\d+)\s+[0-9a-f]+\s+(.*) \((.*)\)$", line)
        if match:
            tid, symbol, library = match.groups()
            text = f"{library.rsplit('/', 1)[-1]} {symbol.replace('(anonymous namespace)::', '')}"
            kind = next(name for pattern, name in KINDS if re.search(pattern, text))
            found.setdefault(int(tid), Counter())[kind] += 1
    return found


def report(took: float, steps: float, threads: dict[int, Thread], counts: dict[int, Counter[str]]) -> None:
    """Milliseconds a step, thread by thread, largest first."""
    step = took / steps
    print(f"{steps:.0f} steps in {took:.2f} s: {step * 1e3:.2f} ms a step")
    for tid, thread in sorted(threads.items(), key=lambda item: -item[1].ran):
        if thread.ran < took / 1000:
            continue
        asleep = took - thread.ran - thread.queued
        ran, queued, slept = (seconds / steps * 1e3 for seconds in (thread.ran, thread.queued, asleep))
        share = thread.ran / took
        print(
            f"  {thread.name}: ran {ran:.2f} ms a step ({share:.1%}), waited for a core {queued:.2f}, slept {slept:.2f}"
        )
        kinds = counts.get(tid, Counter())
        for kind, count in kinds.most_common():
            spent = count / kinds.total() * thread.ran
            print(f"    {spent / steps * 1e3:8.3f} ms {spent / took:6.1%}  {kind}")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    length, most = args.context, 1024
    with (
        tempfile.TemporaryDirectory() as folder,
        make_engine(args.model, args.tokenizer, args.threads, args.rows, length + most, None) as engine,
    ):
        made: list[int] = [0] * args.rows

        def decode() -> None:
            answers = engine.generate(
                input_ids=random_prompts(args.model, args.rows, length),
                sampling_params={"temperature": 0, "max_new_tokens": most, "ignore_eos": True},
                stream=True,
            )
            with suppress(Unavailable):  # the engine ends before the answer
                for answer in answers:
                    assert isinstance(answer, dict)
                    made[int(answer.get("index", 0))] = len(answer["output_ids"])

        reader = threading.Thread(target=decode, daemon=True)
        reader.start()
        while min(made) < 4:
            time.sleep(0.05)
        time.sleep(0.5)
        before = made[0]
        took, threads = watch(scheduler_pid(), args.seconds, Path(folder) / "perf.data")
        report(took, made[0] - before, threads, samples(Path(folder) / "perf.data"))
    return 0


if __name__ == "__main__":
    random.seed(0)
    sys.exit(main())
