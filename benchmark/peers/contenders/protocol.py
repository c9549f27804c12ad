"""What every contender does for the referee, over lines of JSON. Runs in the peers' own environments: stdlib only."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Contender(Protocol):
    """An engine that has its model loaded. Times in seconds."""

    version: str
    """Name, version and the settings that matter."""

    def prefill(self, prompt: list[int]) -> float:
        """From handing over a prompt to its first sampled token, alone."""

    def open(self, prompts: list[list[int]]) -> list[int]:
        """Prefill a batch that decode() goes on with; returns each row's first token. Ends an earlier batch."""

    def keep(self, rows: int) -> None:
        """Drop all rows but the first `rows`."""

    def decode(self, steps: int) -> tuple[float, list[list[int]]]:
        """Seconds of `steps` tokens for every row; and, where the contender tells them, each row's tokens."""


def clock_of(order: dict[str, Any]) -> Callable[[], float]:
    """The clock that the referee asks for: of the wall, or the processor time of every process of this session."""
    if order["clock"] == "wall":
        return time.perf_counter
    return lambda: sum(map(_processor_time, Path("/proc").iterdir()))


def _processor_time(entry: Path) -> float:
    """Of a process of this session (proc(5): session is field 6, user and system time 14 and 15)."""
    if not entry.name.isdigit():
        return 0.0
    try:
        fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    mine = int(fields[3]) == os.getsid(0)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if mine else 0.0


def serve(load: Callable[[dict[str, Any]], Contender]) -> None:
    """Load with the settings in the first line, then obey one line after another.

    Libraries print to standard output: it becomes standard error, and the answers go to what it was.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    contender: Contender | None = None
    for line in sys.stdin:
        order = json.loads(line)
        began = time.perf_counter()
        if contender is None:
            contender = load(order)
            answer: dict[str, Any] = {"version": contender.version, "seconds": time.perf_counter() - began}
        else:
            answer = obey(contender, order)
        answers.write(json.dumps(answer) + "\n")


def obey(contender: Contender, order: dict[str, Any]) -> dict[str, Any]:
    """One order, one answer."""
    match order["do"]:
        case "prefill":
            return {"seconds": contender.prefill(order["prompt"])}
        case "open":
            began = time.perf_counter()
            first = contender.open(order["prompts"])
            return {"seconds": time.perf_counter() - began, "tokens": first}
        case "keep":
            contender.keep(order["rows"])
            return {}
        case "decode":
            seconds, tokens = contender.decode(order["steps"])
            return {"seconds": seconds, "tokens": tokens}
        case other:
            raise ValueError(f"no such order: {other}")
