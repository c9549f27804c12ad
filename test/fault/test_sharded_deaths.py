"""A process of a sharded pair is killed: its engine says who and ends, the other says so and lives, clients hear."""

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from support.engines import Engine
from support.ports import free_range
from support.sharded import FLAGS, decode_engines, prefill_engine, tiny_model
from support.storm import wait_until

PATIENCE_S = 5.0
IMPATIENT = "--disagg-wait-s 1"
"""Of decode engines: with only one prefill engine, how long to hope that it is started anew."""
SHARED = "--tp 2 --dp 2 --enable-dp-attention --ep-size 2"
Pair = tuple[Engine, Engine]


@contextmanager
def pair_of(model: Path, sizes: tuple[str, str]) -> Iterator[Pair]:
    """Prefill and decode with these flags, ready. Fresh: what they leave behind is found by their command lines."""
    port = free_range(2)
    last = port + ("--dp" in sizes[0])
    peers = [f"127.0.0.1:{port}-{last}"]
    with (
        decode_engines(model, [sizes[1]], peers, fresh=True) as (decode,),
        prefill_engine(model, port, sizes[0], fresh=True) as prefill,
    ):
        prefill.wait_ready()
        decode.wait_ready()
        wait_until(lambda: decode.metrics()["num_usable_prefill_engines"] == last - port + 1)
        yield prefill, decode


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two ranks each."""
    with pair_of(tiny_model("qwen3-coder", tmp_path), ("--tp 2", f"--tp 2 {IMPATIENT}")) as engines:
        yield engines


def descendants(pid: int) -> list[int]:
    listed = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    children = [int(child) for child in listed.stdout.split()]
    return [one for child in children for one in (child, *descendants(child))]


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def rank_of(engine: Engine) -> int:
    """Its second rank's process."""
    (found,) = (pid for pid in descendants(engine.process.pid) if "rank_process" in command(pid))
    return found


def scheduler_of(engine: Engine) -> int:
    """The process that holds loop, messenger and native watcher; of several, the last."""
    return engine.children()[-1]


def front_of(engine: Engine) -> int:
    return engine.process.pid


def status(engine: Engine) -> tuple[int, str]:
    """Of a prompt that no cache has; 0 and the error where the engine does not answer."""
    prompt = [10 + byte % 200 for byte in os.urandom(80)]
    body = {"input_ids": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
    try:
        answer = httpx.post(f"{engine.url}/generate", json=body, timeout=30)
    except httpx.TransportError as error:
        return 0, repr(error)
    return answer.status_code, answer.text


class Client(threading.Thread):
    """Asks one prompt after the other until told to stop."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(daemon=True)
        self.answers: list[tuple[float, float, int, str]] = []
        """When asked, when answered, and what."""
        self._engine = engine
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.is_set():
            asked, said = time.monotonic(), status(self._engine)
            self.answers.append((asked, time.monotonic(), *said))
            if said[0] != 200:
                time.sleep(0.2)

    def stop(self) -> None:
        self._over.set()
        self.join(40)
        assert not self.is_alive(), "a client hangs"


class Traces:
    """What an engine has on the machine while it lives: processes, the folder of its sockets, shared memory."""

    def __init__(self, engine: Engine) -> None:
        self._pids = [engine.process.pid, *descendants(engine.process.pid)]
        text = " ".join(command(pid) for pid in self._pids)
        self._folders = {Path(found) for found in re.findall(r"ipc://(/[^ ]+)/[^/ ]+\.sock", text)}
        assert self._folders

    def assert_gone(self) -> None:
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in self._pids), PATIENCE_S)
        assert not [folder for folder in self._folders if folder.exists()]
        names = Path("/proc/net/unix").read_text()
        assert not [folder for folder in self._folders if str(folder) in names]
        owned = {str(pid) for pid in self._pids}
        assert not [path for path in Path("/dev/shm").iterdir() if owned & set(re.split(r"[-:_]", path.name))]


def kill(engine: Engine, victim: Callable[[Engine], int], asked: Engine) -> Client:
    """Kill in the middle of requests to `asked`; what its client heard, once the engine has ended without a trace."""
    client, traces = Client(asked), Traces(engine)
    wait_until(lambda: len(client.answers) >= 3, 60)
    assert {code for _, _, code, _ in client.answers} == {200}
    pid = victim(engine)
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    assert engine.process.wait(PATIENCE_S), "exit code"
    if victim is rank_of:
        assert f"rank 1 (process {pid}) was ended by SIGKILL" in engine.log()
    traces.assert_gone()
    wait_until(lambda: client.answers[-1][2] != 200, 30)
    client.stop()
    first = next(answer for answer in client.answers if answer[2] != 200)
    assert first[1] - killed < PATIENCE_S
    print(f"{first[1] - killed:.2f} s from the kill to the first client that heard {first[2]}: {first[3][:90]}")
    return client


CASES = [
    pytest.param("prefill", rank_of, id="P-rank"),
    *(
        pytest.param(side, victim, marks=pytest.mark.slow, id=f"{side[0].upper()}-{victim.__name__[:-3]}")
        for side, victim in (
            ("prefill", scheduler_of), ("prefill", front_of),
            ("decode", rank_of), ("decode", scheduler_of), ("decode", front_of),
        )
    ),
]  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("side", "victim"), CASES)
def test_a_killed_process_ends_its_engine_and_spares_the_other(
    pair: Pair, side: str, victim: Callable[[Engine], int]
) -> None:
    check_death(pair, side, victim)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_killed_replica_takes_those_that_share_its_experts_along(side: str, tmp_path: Path) -> None:
    sizes = (SHARED, f"--tp 1 {IMPATIENT}") if side == "prefill" else ("--tp 1", SHARED)
    with pair_of(tiny_model("qwen3-coder", tmp_path), sizes) as pair:
        check_death(pair, side, scheduler_of)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_killed_scheduler_leaves_no_endpoint_in_shared_memory(side: str, tmp_path: Path) -> None:
    """The shm provider's endpoints are files in /dev/shm, which only their process removes."""
    sizes = ("--disagg-provider shm", f"--disagg-provider shm {IMPATIENT}")
    with pair_of(tiny_model("qwen3-coder", tmp_path), sizes) as pair:
        owned = scheduler_of(pair[0] if side == "prefill" else pair[1])
        assert list(Path("/dev/shm").glob(f"pyfabric-*-{owned}-*")), "nothing to leave"
        check_death(pair, side, scheduler_of)


def check_death(pair: Pair, side: str, victim: Callable[[Engine], int]) -> None:
    prefill, decode = pair
    if side == "prefill":
        client = kill(prefill, victim, decode)
        codes = {code for _, _, code, _ in client.answers}
        assert codes == {200, 503} and "prefill" in client.answers[-1][3], client.answers[-1]
        assert httpx.get(f"{decode.url}/health", timeout=10).status_code == 200
        return
    client = kill(decode, victim, decode)
    assert {code for _, _, code, _ in client.answers} <= {200, 503, 0}, "a 503, or a closed connection"
    wait_until(lambda: "lost" in prefill.log() or "silent" in prefill.log() or "left" in prefill.log(), PATIENCE_S)
    assert httpx.get(f"{prefill.url}/health", timeout=10).status_code == 200
    wait_until(lambda: not prefill.metrics()["num_admitted_reqs"], PATIENCE_S)


@pytest.mark.slow
def test_a_replica_that_cannot_start_ends_all_of_them(tmp_path: Path) -> None:
    """Its control port is taken, which it learns after its worker has begun to step with the other's."""
    model, port = tiny_model("qwen3-coder", tmp_path), free_range(2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        with prefill_engine(model, port, SHARED) as engine:
            assert engine.process.wait(60) == 2
            assert "Address already in use" in engine.log()


@pytest.mark.slow
def test_an_error_in_one_replica_ends_all_with_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is in one replica's process alone: a module that Python imports at start puts it there."""
    model = tiny_model("qwen3-coder", tmp_path)
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, threading, time\n"
        "def arm():\n"
        "    runner = None\n"
        "    while not hasattr(runner, 'idle'):\n"
        "        time.sleep(0.01)\n"
        "        module = sys.modules.get('sglang.srt.model_executor.model_runner')\n"
        "        runner = getattr(module, 'ModelRunner', None)\n"
        "    def idle(self):\n"
        "        raise RuntimeError('injected into an empty step')\n"
        "    runner.idle = idle\n"
        "if any('scheduler1.sock' in word for word in sys.orig_argv):\n"
        "    threading.Thread(target=arm, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    with Engine(*FLAGS, *SHARED.split(), model=model, fresh=True) as engine:
        engine.wait_ready()
        code, text = status(engine)
        assert code in (0, 503), text
        assert engine.process.wait(PATIENCE_S)
        log = engine.log()
        assert log.count("injected into an empty step") and "RuntimeError" in log
