"""What every contender does for the referee, over lines of JSON. Runs in the peers' own environments: stdlib only."""

import json
import os
import sys
import time
from collections.abc import Callable
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
