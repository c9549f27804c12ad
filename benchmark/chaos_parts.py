"""What chaos.py breaks: engines as processes, a hostile proxy on the control plane, clients that know every answer."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import zmq

COMMON = (
    "--load-format",
    "dummy",
    "--dtype",
    "float32",
    "--max-total-tokens",
    "16384",
    "--chunked-prefill-size",
    "128",
    "--no-grammar-warmup",
)
DESCRIPTORS = 256
"""RLIMIT_NOFILE of every engine, so that a burst can exhaust it."""


def free_port() -> int:
    """A port that nothing listens on now, and that no outgoing connection is given while its engine is down."""
    while True:
        port = random.randrange(20_000, 32_768)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def make_model(folder: Path) -> Path:
    """A llama of 4 layers, 64 wide, 320 tokens; its random weights are the same in every engine."""
    from tokenizers import Tokenizer, models

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 4,
        "head_dim": 16,
        "vocab_size": 320,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 0,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    Tokenizer(models.WordLevel({f"t{i}": i for i in range(320)}, unk_token="t2")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder


@dataclass
class Process:
    """One engine; a restart keeps its ports."""

    name: str
    flags: tuple[str, ...]
    model: Path
    log: Path
    port: int = field(default_factory=free_port)
    up: bool = False
    """Whether clients may be sent here, as a balancer's health checks would say."""
    born: float = 0.0
    down_since: float = float("inf")
    """When it was last killed or stopped."""
    back_at: float = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Without waiting."""
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(self.model), *COMMON, *self.flags]
        limited = ["prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}", *command, "--port", str(self.port)]
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(limited, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        self.born = time.monotonic()

    def wait_ready(self, seconds: float = 120.0) -> None:
        """Raises AssertionError where it does not become healthy."""
        end = time.monotonic() + seconds
        while True:
            assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}, see {self.log}"
            assert time.monotonic() < end, f"{self.name} is not ready after {seconds} s"
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    self.up, self.down_since, self.back_at = True, float("inf"), time.monotonic()
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)

    def pids(self) -> list[int]:
        """The HTTP process and its helpers."""
        try:
            root = psutil.Process(self.process.pid)
            return [root.pid, *(child.pid for child in root.children(recursive=True))]
        except psutil.NoSuchProcess:
            return []

    def send(self, number: int) -> None:
        """A signal to all of it."""
        if number in (signal.SIGKILL, signal.SIGSTOP):
            self.up, self.down_since = False, time.monotonic()
        for pid in self.pids():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        if number == signal.SIGKILL:
            self.process.wait(10)

    def kill(self) -> None:
        """SIGKILL to all of it."""
        self.send(signal.SIGKILL)

    def leave(self) -> None:
        """SIGTERM, as before an orderly restart; until it has ended."""
        self.up, self.down_since = False, time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def gauges(self) -> dict[str, float]:
        """Every plain metric by name."""
        found = {}
        for line in httpx.get(f"{self.url}/metrics", timeout=10).text.splitlines():
            if line.startswith("sglang:") and "_bucket" not in line:
                name, value = line.rsplit(" ", 1)
                found[name.removeprefix("sglang:").split("{")[0]] = float(value)
        return found

    def footprint(self) -> tuple[int, float]:
        """(open descriptors, resident MiB) over its processes."""
        processes = [psutil.Process(pid) for pid in self.pids()]
        return sum(p.num_fds() for p in processes), sum(p.memory_info().rss for p in processes) / 2**20

    def stop(self) -> None:
        """SIGTERM, then SIGKILL."""
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.send(signal.SIGKILL)


class HealthWatch:
    """Asks every engine's /health once a second, and remembers what was not true.

    Only engines that nothing was done to for `CALM_S` are judged: what a fault leaves behind may show that long.
    """

    CALM_S = 5.0

    def __init__(self, nodes: Sequence[Process], starved: set[str]) -> None:
        self._nodes, self._starved = nodes, starved
        self._over = threading.Event()
        self._true = 0
        self._lies: list[str] = []
        self._quiet_since = {node.name: time.monotonic() for node in nodes}
        self._threads = [threading.Thread(target=self._watch, args=(node,), daemon=True) for node in nodes]
        for thread in self._threads:
            thread.start()

    def close(self) -> tuple[int, list[str]]:
        """(answers that were true, the others)."""
        self._over.set()
        for thread in self._threads:
            thread.join(30)
        return self._true, self._lies

    def _watch(self, node: Process) -> None:
        while not self._over.wait(1.0):
            if not self._calm(node):
                continue
            said = self._said(node)
            if not self._calm(node):
                continue
            if said == "200":
                self._true += 1
            else:
                self._lies.append(f"{node.name}: nothing is wrong with it, but /health: {said}")

    def _calm(self, node: Process) -> bool:
        now = time.monotonic()
        if not node.up or node.name in self._starved:
            self._quiet_since[node.name] = now
        return now - max(self._quiet_since[node.name], node.back_at) > self.CALM_S

    def _said(self, node: Process) -> str:
        try:
            return str(httpx.get(f"{node.url}/health", timeout=10).status_code)
        except httpx.HTTPError as error:
            return type(error).__name__


class Proxy:
    """Stands between decode engines and one prefill engine; damages and replays control frames while `evil`."""

    def __init__(self, target: int, seed: int) -> None:
        self.port = free_port()
        self.evil = False
        self.damaged = self.replayed = self.passed = 0
        self._target = target
        self._random = random.Random(seed)
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._over = True
        self._thread.join(5)

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        front = context.socket(zmq.ROUTER)
        front.setsockopt(zmq.LINGER, 0)
        front.setsockopt(zmq.ROUTER_HANDOVER, 1)
        front.bind(f"tcp://127.0.0.1:{self.port}")
        backs: dict[bytes, zmq.Socket[bytes]] = {}
        past: deque[tuple[bytes, bytes, bool]] = deque(maxlen=500)
        poller = zmq.Poller()
        poller.register(front, zmq.POLLIN)
        while not self._over:
            poller.poll(100)
            while front.poll(0):
                name, frame = front.recv_multipart()[:2]
                if name not in backs:
                    back = backs[name] = context.socket(zmq.DEALER)
                    for option, value in ((zmq.LINGER, 0), (zmq.SNDHWM, 200), (zmq.RECONNECT_IVL_MAX, 500)):
                        back.setsockopt(option, value)
                    back.setsockopt(zmq.IDENTITY, name)
                    back.connect(f"tcp://127.0.0.1:{self._target}")
                    poller.register(back, zmq.POLLIN)
                self._forward(front, backs, name, frame, True, past)
            for name, back in backs.items():
                while back.poll(0):
                    self._forward(front, backs, name, back.recv_multipart()[-1], False, past)
        for sock in (front, *backs.values()):
            sock.close()
        context.term()

    def _forward(
        self,
        front: "zmq.Socket[bytes]",
        backs: "dict[bytes, zmq.Socket[bytes]]",
        name: bytes,
        frame: bytes,
        up: bool,
        past: deque[tuple[bytes, bytes, bool]],
    ) -> None:
        rng = self._random
        past.append((name, frame, up))
        sent = [(name, frame, up)]
        if self.evil and rng.random() < 0.05:
            index = rng.randrange(len(frame))
            sent = [(name, frame[:index] + bytes((frame[index] ^ 1 << rng.randrange(8),)) + frame[index + 1 :], up)]
            self.damaged += 1
        if self.evil and rng.random() < 0.05:
            sent.append(rng.choice(past))
            self.replayed += 1
        for to, content, upward in sent:
            try:
                if upward:
                    backs[to].send(content, zmq.NOBLOCK)
                else:
                    front.send_multipart([to, content], zmq.NOBLOCK)
            except zmq.ZMQError:
                continue
            self.passed += 1
