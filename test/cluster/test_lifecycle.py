"""A cluster's life with fake engines: ready, in trouble, and gone without a trace."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import yaml
from tokenizers import Tokenizer, models

DRIVER = Path(__file__).parents[1] / "support" / "fake_cluster.py"
Start = Callable[..., "Running"]


class Running:
    """A launch_cluster in a process of its own."""

    def __init__(self, recipe: Path, log: Path, *flags: str) -> None:
        self._log = log
        with log.open("w") as stream:
            command = [sys.executable, str(DRIVER), str(recipe), *flags]
            self.process = subprocess.Popen(command, stdout=stream, stderr=stream)

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return self._log.read_text()

    def wait_for(self, pattern: str, seconds: float = 20.0) -> re.Match[str]:
        """Wait until its log matches."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if match := re.search(pattern, self.log):
                return match
            time.sleep(0.05)
        raise AssertionError(f"no {pattern!r} in:\n{self.log}")

    def family(self) -> list[psutil.Process]:
        """All its descendants."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def engine(self, port: int) -> psutil.Process:
        """The one at that port."""
        (found,) = (process for process in self.family() if str(port) in process.cmdline())
        return found


def gone(processes: list[psutil.Process], seconds: float = 10.0) -> bool:
    """Whether all of them have ended; one that nobody has reaped yet (an orphan, under some inits) has."""
    alive = psutil.wait_procs(processes, timeout=seconds)[1]
    return all(process.status() == psutil.STATUS_ZOMBIE for process in alive)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts clusters, and ends what a failed test leaves."""
    clusters: list[Running] = []

    def run(recipe: Path, *flags: str) -> Running:
        clusters.append(Running(recipe, tmp_path / f"log{len(clusters)}", *flags))
        return clusters[-1]

    yield run
    for cluster in clusters:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [*cluster.family(), cluster.process]:
                process.kill()
        cluster.process.wait()


def write_recipe(folder: Path, ports: list[int], router: bool = False, model: str = "m") -> Path:
    """1 prefill and 2 decode engines on [prefill, bootstrap, decode, decode, router, metrics of the router]."""
    content: dict[str, object] = {
        "defaults": {"model-path": model},
        "prefill": [{"port": ports[0], "disagg-bootstrap-port": ports[1]}],
        "decode": [{"port": ports[2]}, {"port": ports[3]}],
    }
    if router:
        content["router"] = {"port": ports[4], "prometheus-port": ports[5]}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture
def recipe(tmp_path: Path, free_ports: list[int]) -> Path:
    """A recipe without a balancer."""
    return write_recipe(tmp_path, free_ports)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything(recipe: Path, free_ports: list[int], start: Start, number: signal.Signals) -> None:
    cluster = start(recipe, "--", "decode-1:--helper", "prefill-0:--ready-after=0.3")
    cluster.wait_for("Ready at")
    assert httpx.get(f"http://127.0.0.1:{free_ports[2]}/health").status_code == 200
    assert re.search(r"prefill-0 \| ready after", cluster.log)
    assert re.search(rf"decode-1  \| listening on {free_ports[3]}", cluster.log)
    family = cluster.family()
    assert len(family) == 4  # three engines and the helper of one
    cluster.process.send_signal(number)
    assert cluster.process.wait(10) == 0
    assert gone(family)


def test_the_balancer_spreads_requests_over_decode_engines(tmp_path: Path, free_ports: list[int], start: Start) -> None:
    pytest.importorskip("sglang_router")
    # the balancer loads the tokenizer of the model that engines name: a folder here, so that it asks no network
    Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    recipe = write_recipe(tmp_path, free_ports, router=True, model=str(tmp_path))
    cluster = start(recipe, "--", *(f"{name}:--access-log" for name in ("prefill-0", "decode-0", "decode-1")))
    cluster.wait_for(f"Ready at http://127.0.0.1:{free_ports[4]}")
    body = {"text": "a b", "sampling_params": {"max_new_tokens": 3}}
    for _ in range(4):
        answer = httpx.post(f"http://127.0.0.1:{free_ports[4]}/generate", json=body)
        assert answer.json()["meta_info"]["completion_tokens"] == 3
    family = cluster.family()
    assert len(family) == 4
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.process.wait(15) == 0
    assert gone(family)
    for engine, count in (("prefill-0", 0), ("decode-0 ", 2), ("decode-1 ", 2)):
        assert len(re.findall(rf"{engine} \| POST /generate", cluster.log)) == count


def test_the_first_death_is_named_with_the_end_of_its_log(recipe: Path, free_ports: list[int], start: Start) -> None:
    cluster = start(recipe, "--", "decode-1:--helper")
    cluster.wait_for("Ready at")
    family = cluster.family()
    cluster.engine(free_ports[3]).send_signal(signal.SIGUSR1)
    assert cluster.process.wait(15) == 1
    assert "launch_cluster: decode-1 exited with code 7; the end of its log:" in cluster.log
    assert "  | fatal: the fake engine gives up" in cluster.log
    assert gone(family)


def test_a_death_before_readiness_is_named_too(recipe: Path, start: Start) -> None:
    cluster = start(recipe, "--", "prefill-0:--ready-after=60", "decode-0:--die-after=0.2")
    assert cluster.process.wait(15) == 1
    assert "decode-0 exited with code 7" in cluster.log
    assert "Ready at" not in cluster.log


def test_a_killed_engine_is_told_by_its_signal(recipe: Path, start: Start) -> None:
    cluster = start(recipe)
    cluster.wait_for("Ready at")
    next(p for p in cluster.family() if "prefill" in p.cmdline()).kill()
    assert cluster.process.wait(15) == 1
    assert "prefill-0 was ended by SIGKILL" in cluster.log


def test_one_that_never_gets_ready_is_named(recipe: Path, start: Start) -> None:
    # 5 s: the others are to be ready by then, on a machine that is busy with other things, too.
    cluster = start(recipe, "--ready-timeout", "5", "--", "decode-0:--ready-after=60")
    assert cluster.process.wait(30) == 1
    assert "launch_cluster: decode-0: not ready after 5 s" in cluster.log


def test_one_that_ignores_sigterm_is_killed(recipe: Path, start: Start) -> None:
    cluster = start(recipe, "--grace", "0.5", "--", "decode-0:--stubborn", "prefill-0:--stubborn")
    cluster.wait_for("Ready at")
    family = cluster.family()
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.process.wait(10) == 0
    assert gone(family)


def test_a_second_ctrl_c_does_not_wait(recipe: Path, free_ports: list[int], start: Start) -> None:
    cluster = start(recipe, "--grace", "60", "--", "decode-0:--stubborn", "prefill-0:--stubborn")
    cluster.wait_for("Ready at")
    family, obedient = cluster.family(), cluster.engine(free_ports[3])
    cluster.process.send_signal(signal.SIGINT)
    assert gone([obedient]), "the first has not been taken"  # two that come before that are one
    assert cluster.process.poll() is None
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.process.wait(10) == 0
    assert gone(family)


def test_engines_do_not_outlive_a_killed_launcher(recipe: Path, start: Start) -> None:
    cluster = start(recipe)
    cluster.wait_for("Ready at")
    family = cluster.family()
    cluster.process.kill()
    cluster.process.wait()
    assert gone(family)


def test_a_port_in_use_is_one_clear_line(recipe: Path, free_ports: list[int], start: Start) -> None:
    with socket.create_server(("127.0.0.1", free_ports[3])):
        cluster = start(recipe)
        assert cluster.process.wait(15) == 2
    message = f"launch_cluster: decode-1 cannot listen on 127.0.0.1:{free_ports[3]} (Address already in use)"
    assert [line for line in cluster.log.splitlines() if line.startswith(message)] == cluster.log.splitlines()
