"""A process of a sharded pair dies: its engine says who and ends, the other says so and lives, clients hear 503."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from support.engines import Engine, free_port
from support.sharded import decode_engines, prefill_engine, tiny_model

PATIENCE_S = 5.0
Pair = tuple[Engine, Engine]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Prefill and decode, two ranks each."""
    model, port = tiny_model("qwen3-coder", tmp_path), free_port()
    peers = [f"127.0.0.1:{port}"]
    with decode_engines(model, ["--tp 2"], peers) as (decode,), prefill_engine(model, port, "--tp 2") as prefill:
        prefill.wait_ready()
        decode.wait_ready()
        yield prefill, decode


def descendants(pid: int) -> list[int]:
    listed = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    children = [int(child) for child in listed.stdout.split()]
    return [one for child in children for one in (child, *descendants(child))]


def rank_of(engine: Engine) -> int:
    """Its second rank's process."""
    found = [p for p in descendants(engine.process.pid) if b"rank_process" in Path(f"/proc/{p}/cmdline").read_bytes()]
    assert len(found) == 1
    return found[0]


def scheduler_of(engine: Engine) -> int:
    return engine.children()[0]


def front_of(engine: Engine) -> int:
    return engine.process.pid


def status(engine: Engine) -> tuple[int, str]:
    """Of a prompt that no cache has."""
    prompt = [10 + byte % 200 for byte in os.urandom(80)]
    body = {"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
    answer = httpx.post(f"{engine.url}/generate", json=body, timeout=30)
    return answer.status_code, answer.text


def assert_gone(pids: list[int]) -> None:
    end = time.monotonic() + PATIENCE_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < end, "processes are left behind"
        time.sleep(0.05)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "victim",
    [rank_of, pytest.param(scheduler_of, marks=pytest.mark.slow), pytest.param(front_of, marks=pytest.mark.slow)],
)
def test_a_process_of_the_prefill_engine_dies(pair: Pair, victim: Callable[[Engine], int]) -> None:
    prefill, decode = pair
    assert status(decode)[0] == 200
    everyone, pid = descendants(prefill.process.pid), victim(prefill)
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    prefill.process.wait(PATIENCE_S)
    code, text = status(decode)
    assert code == 503 and "prefill" in text and time.monotonic() < killed + 2 * PATIENCE_S, text
    assert prefill.process.returncode
    if victim is rank_of:
        assert f"rank 1 (process {pid}) was ended by SIGKILL" in prefill.log()
    assert_gone(everyone)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", [rank_of, scheduler_of])
def test_a_process_of_the_decode_engine_dies(pair: Pair, victim: Callable[[Engine], int]) -> None:
    prefill, decode = pair
    assert status(decode)[0] == 200
    everyone, pid = descendants(decode.process.pid), victim(decode)
    os.kill(pid, signal.SIGKILL)
    decode.process.wait(PATIENCE_S)
    assert decode.process.returncode
    if victim is rank_of:
        assert f"rank 1 (process {pid}) was ended by SIGKILL" in decode.log()
    assert_gone(everyone)
    end = time.monotonic() + 2 * PATIENCE_S
    while "lost" not in prefill.log() and "silent" not in prefill.log():
        assert time.monotonic() < end, "the other side says nothing"
        time.sleep(0.1)
    assert httpx.get(f"{prefill.url}/health", timeout=10).status_code == 200
