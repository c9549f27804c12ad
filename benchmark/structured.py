"""What structured output costs those who stream: gaps between tokens without grammars, with them, beside a slow one.

python benchmark/structured.py --model-path models/SmolLM2-135M-Instruct
"""

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sglang
from sglang.srt.errors import RequestError

SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    },
    "minItems": 20,
}
SLOW = "(" + "|".join(f"[a-z]{{{i}}}x" for i in range(300)) + ")*"
"""Compiling it takes longer than the limit."""
STREAMS, TOKENS = 4, 60


def gaps_of(engine: "sglang.Engine", sampling: dict[str, object]) -> list[float]:
    """Seconds between the tokens of STREAMS requests at a time, all together, sorted."""
    found: list[float] = []

    def stream(number: int) -> None:
        last = 0.0
        asked = {"max_new_tokens": TOKENS, "temperature": 1.0, "ignore_eos": True, "sampling_seed": number, **sampling}
        for _ in engine.generate(f"{number} towns by the sea:", asked, stream=True):
            now = time.perf_counter()
            if last:
                found.append(now - last)
            last = now

    threads = [threading.Thread(target=stream, args=(number,)) for number in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(found)


@contextmanager
def compiling(engine: "sglang.Engine", pattern: str) -> Iterator[None]:
    """A grammar that compiles meanwhile, until it meets its limit."""

    def ask() -> None:
        try:
            engine.generate("x", {"regex": pattern, "max_new_tokens": 1})
        except RequestError:
            return

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.5)
    yield
    thread.join()


def timed(work: Callable[[], object]) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def show(name: str, gaps: list[float]) -> None:
    p99, last = gaps[int(len(gaps) * 0.99)], gaps[-1]
    print(f"{name:<34} median {statistics.median(gaps) * 1e3:6.1f} ms   p99 {p99 * 1e3:6.1f}   max {last * 1e3:6.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    mine = parser.parse_args()
    settings: dict[str, Any] = {"max_total_tokens": 4096, "threads": 1, "log_level": "warning"}
    with sglang.Engine(model_path=mine.model_path, **settings) as engine:
        time.sleep(10)  # the grammar library loads meanwhile
        first = timed(lambda: engine.generate("x", {"json_schema": json.dumps(SCHEMA), "max_new_tokens": 1}))
        print(f"first grammar after warm-up, one token: {first:.0f} ms")
        for _ in range(mine.rounds):
            show("free", gaps_of(engine, {}))
            show("with a JSON schema each", gaps_of(engine, {"json_schema": json.dumps(SCHEMA)}))
            with compiling(engine, SLOW):
                show("free, beside a slow compilation", gaps_of(engine, {}))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
