"""The HTTP process as users meet it: exit codes, one clear line, signals, no orphans."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from support.live_front import MODEL, wait_until
from support.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
SERVER = ROOT / "test" / "support" / "scripted_server.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'test'}"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sglang", "launch-server", *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)


class Server:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False)

    def healthy(self) -> bool:
        try:
            return self.http.get("/health").status_code == 200
        except httpx.TransportError:
            assert self.process.poll() is None, self.process.communicate()
            return False

    def child(self) -> psutil.Process:
        return psutil.Process(self.process.pid).children()[0]


@contextmanager
def server(*scheduler: str, wait: bool = True, port: int = 0, flags: tuple[str, ...] = ()) -> Iterator[Server]:
    port = port or free_port()
    command = [sys.executable, str(SERVER), *scheduler, "--", "--model-path", str(MODEL), "--port", str(port), *flags]
    process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    running = Server(process, port)
    try:
        if wait:
            wait_until(running.healthy, 30)
        yield running
    finally:
        running.http.close()
        process.kill()
        process.communicate()


def gone(child: psutil.Process) -> bool:
    return not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_wrong_flags_exit_2_with_one_line() -> None:
    result = run("--model-path", "m", "--disagg-mode", "decode")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1 and "--disagg-prefill" in result.stderr


def test_a_missing_model_folder_exits_2_with_one_line() -> None:
    result = run("--model-path", "/nonexistent/model", "--port", str(free_port()))
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1 and "/nonexistent/model" in result.stderr


def test_a_port_in_use_exits_1_with_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = run("--model-path", str(MODEL), "--port", port)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1 and f"--port: cannot listen on 127.0.0.1:{port}" in result.stderr


@pytest.mark.parametrize("host", ["192.0.2.1", "name.invalid"])  # of no machine; no name's (RFC 5737, 2606)
def test_an_address_that_is_not_this_machines_exits_1_with_one_line(host: str) -> None:
    result = run("--model-path", str(MODEL), "--host", host)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1 and f"--host: cannot listen on {host}" in result.stderr


def test_unknown_commands_are_named() -> None:
    command = [sys.executable, "-m", "sglang", "launch-rocket"]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=30)
    assert result.returncode == 2 and "launch-rocket" in result.stderr and "launch-server" in result.stderr


def test_a_scheduler_that_cannot_start_gives_its_exit_code() -> None:
    with server("--fail", "3", wait=False) as running:
        _, errors = running.process.communicate(timeout=30)
        assert running.process.returncode == 3
        assert "scripted: no such weights" in errors and "the engine failed to start" in errors
        assert "Traceback" not in errors


def test_sigterm_finishes_what_runs_and_exits_0_without_an_orphan() -> None:
    with server("--step", "0.02") as running:
        child = running.child()
        body = {"prompt": "go on", "max_tokens": 40, "stream": True}
        with running.http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            running.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]" and '"finish_reason":"length"' in rest[-2]
        _, errors = running.process.communicate(timeout=15)
        assert running.process.returncode == 0, errors
        assert "Traceback" not in errors
        assert gone(child)


def test_a_scheduler_that_peers_still_need_is_waited_for() -> None:
    """A prefill engine's transfers are no requests of its own front."""
    with server("--linger", "1.5") as running:
        running.process.send_signal(signal.SIGTERM)
        _, errors = running.process.communicate(timeout=15)
        assert running.process.returncode == 0, errors
        assert "scripted: finished" in errors


def test_a_replica_that_has_finished_leaves_the_others_to_theirs() -> None:
    with server("--step", "0.05", flags=("--dp-size", "2")) as running:
        body = {"prompt": "go on", "max_tokens": 20, "stream": True}
        with running.http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            running.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]" and '"finish_reason":"length"' in rest[-2]
        running.process.communicate(timeout=15)
        assert running.process.returncode == 0


def test_a_second_signal_ends_at_once() -> None:
    with server("--step", "0.05") as running:
        child = running.child()
        body = {"prompt": "go on", "max_tokens": 1500, "stream": True}
        with running.http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()  # held: dropping it closes the connection
            next(lines)
            running.process.send_signal(signal.SIGINT)
            assert running.process.stderr is not None
            # Two signals of one number that come before the first is taken are one.
            assert any("stopping: 1 outputs to finish" in line for line in running.process.stderr)
            assert running.process.poll() is None
            running.process.send_signal(signal.SIGINT)
            began = time.monotonic()
            running.process.communicate(timeout=15)
        assert time.monotonic() - began < 8
        assert running.process.returncode == 1
        assert gone(child)


def test_the_schedulers_death_ends_the_server_with_its_code() -> None:
    with server("--step", "0.02") as running:
        body = {"prompt": "go on", "max_tokens": 1500, "stream": True}
        with running.http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            running.child().kill()
            rest = [line for line in lines if line]
        assert '"message":"the engine died"' in rest[-2]
        _, errors = running.process.communicate(timeout=15)
        assert running.process.returncode == 128 + signal.SIGKILL
        assert "the engine died" in errors and "Traceback" not in errors


def test_a_killed_server_leaves_no_orphan() -> None:
    with server() as running:
        child = running.child()
        running.process.kill()
        running.process.wait()
        wait_until(lambda: gone(child), 5)
