"""Real engines as child processes, for end-to-end tests."""

import atexit
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType

import httpx

from sglang.cluster.child import die_with_parent
from support.nursery import Child, Nursery
from support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct"
READY_S = 120.0


@cache
def nursery() -> Nursery:
    """The one of this test run."""
    made = Nursery()
    atexit.register(made.close)
    return made


def need_model() -> Path:
    """The demo model's folder; a clear failure where it is missing."""
    assert (MODEL / "config.json").exists(), f"{MODEL} is missing: run `make model`"
    return MODEL


class Engine:
    """One launch_server process."""

    def __init__(self, *flags: str, model: Path | None = None, port: int | None = None, fresh: bool = False) -> None:
        """`fresh`: as its users start it, in place of a fork of the nursery (support/nursery.py)."""
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = tempfile.NamedTemporaryFile("w+", suffix=".log")  # noqa: SIM115 - closed in stop()
        self._said = ""
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model or need_model())]
        # Few tests have grammars, and loading their library takes some 5 s of CPU time an engine.
        command += ["--no-grammar-warmup"]
        command += ["--port", str(self.port), *flags]
        if not fresh:
            self.process: subprocess.Popen[bytes] | Child = Child(nursery(), command, self._log.fileno(), ROOT)
            return
        self.process = subprocess.Popen(
            command,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
            # A test run that is killed must not leave engines behind. The signal comes when the starting *thread* ends.
            preexec_fn=die_with_parent() if threading.current_thread() is threading.main_thread() else None,
        )

    def __enter__(self) -> "Engine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            sys.stderr.write(f"--- log of {' '.join(map(str, self.process.args))}\n{self.log()[-4000:]}\n")  # type: ignore[arg-type]
        self.stop()

    def log(self) -> str:
        """Everything it has printed."""
        return self._said or Path(self._log.name).read_text()

    def wait_ready(self) -> "Engine":
        """Until /health answers 200; fails at once where the process has ended."""
        end = time.monotonic() + READY_S
        while time.monotonic() < end:
            code = self.process.poll()
            assert code is None, f"engine ended with {code}:\n{self.log()}"
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return self
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"not ready after {READY_S} s:\n{self.log()}")

    def generate(self, prompt: list[int] | str, count: int, **sampling: object) -> dict[str, object]:
        """One greedy /generate with logprobs."""
        body: dict[str, object] = {"input_ids": prompt} if isinstance(prompt, list) else {"text": prompt}
        body["sampling_params"] = {"temperature": 0, "max_new_tokens": count, "ignore_eos": True, **sampling}
        body["return_logprob"] = True
        answer = httpx.post(f"{self.url}/generate", json=body, timeout=300)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def metrics(self) -> dict[str, float]:
        """Metric name without prefix and labels -> value (histogram buckets left out)."""
        found = {}
        for line in httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines():
            if line.startswith("sglang:") and "_bucket" not in line:
                name, value = line.rsplit(" ", 1)
                found[name.removeprefix("sglang:").split("{")[0]] = float(value)
        return found

    def reached(self, name: str, value: float, seconds: float = 20.0) -> dict[str, float]:
        """Its metrics once `name` is at least `value`: an answer can be out before a prefill engine has counted it."""
        end = time.monotonic() + seconds
        while (found := self.metrics()).get(name, 0.0) < value:
            assert time.monotonic() < end, f"{name} is {found.get(name)} after {seconds} s, expected {value}"
            time.sleep(0.02)
        return found

    def signal(self, number: int) -> None:
        """To the HTTP process and its scheduler process."""
        os.killpg(self.process.pid, number)
        for child in self.children():
            os.kill(child, number)

    def children(self) -> list[int]:
        """Process ids of the scheduler process (it has a process group of its own)."""
        listed = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in listed.stdout.split()]

    def stop(self) -> int:
        """SIGTERM, then SIGKILL after 15 s; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
                self.process.wait(5)
        if not self._log.closed:
            self._said = self.log()
            self._log.close()
        return self.process.returncode


@contextmanager
def cluster(
    *flags: str, decodes: int = 1, prefill_flags: tuple[str, ...] = (), model: Path | None = None
) -> Iterator[tuple[Engine, list[Engine]]]:
    """(prefill engine, decode engines), ready."""
    control = free_port()
    with ExitStack() as stack:
        prefill = stack.enter_context(
            Engine(
                "--disagg-mode", "prefill", "--disagg-bootstrap-port", str(control), *flags, *prefill_flags, model=model
            )
        )
        asks = ("--disagg-mode", "decode", "--disagg-prefill", f"127.0.0.1:{control}")
        decode = [stack.enter_context(Engine(*asks, *flags, model=model)) for _ in range(decodes)]
        for engine in (prefill, *decode):
            engine.wait_ready()
        yield prefill, decode
