"""A cluster of small engines whose processes can be stopped, killed and restarted; clients that compare every token."""

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from support.engines import Engine
from support.ports import free_port
from support.tiny_folder import VOCABULARY

FLAGS = ("--load-format", "dummy", "--dtype", "float32", "--max-total-tokens", "12288", "--chunked-prefill-size", "32")
LEFT = (
    "num_used_tokens",
    "num_admitted_reqs",
    "num_queue_reqs",
    "num_transfer_slots_used",
    "num_prefill_inflight_queue_reqs",
    "num_programs_in_flight",
)
"""Gauges that are 0 once everything has come back."""


def prompts(count: int, seed: int, shortest: int = 100, longest: int = 900) -> list[list[int]]:
    """Token ids; long enough to be prefilled elsewhere, in several chunks."""
    rng = random.Random(seed)
    return [[rng.randrange(3, VOCABULARY) for _ in range(rng.randint(shortest, longest))] for _ in range(count)]


def wait_until(true: Callable[[], object], seconds: float = 20.0) -> float:
    """Seconds until it was; fails after `seconds`."""
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < seconds, f"not true within {seconds} s"
        time.sleep(0.02)
    return time.monotonic() - start


@dataclass
class Node:
    """One engine's place in the cluster: what is started again has the same ports."""

    flags: tuple[str, ...]
    model: Path
    port: int = field(default_factory=free_port)
    engine: Engine | None = None

    def start(self) -> "Node":
        """Start it; `up` waits for it."""
        self.engine = Engine(*self.flags, model=self.model, port=self.port)
        return self

    @property
    def live(self) -> Engine:
        assert self.engine is not None
        return self.engine

    def kill(self) -> None:
        """SIGKILL, HTTP and scheduler process alike."""
        children = self.live.children()
        self.live.signal(signal.SIGKILL)
        self.live.process.wait(10)
        wait_until(lambda: not any(Path(f"/proc/{pid}/stat").exists() and _running(pid) for pid in children))

    def restart(self) -> None:
        """Up again."""
        self.start().live.wait_ready()


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@dataclass
class Storm:
    """The cluster and its clients."""

    prefill: list[Node]
    decode: list[Node]
    pool: ThreadPoolExecutor

    def ask(self, node: Node, prompt: list[int], count: int) -> Future[httpx.Response]:
        """A greedy request."""
        body = {
            "input_ids": prompt,
            "sampling_params": {"temperature": 0, "max_new_tokens": count, "ignore_eos": True},
        }
        return self.pool.submit(httpx.post, f"{node.live.url}/generate", json=body, timeout=60)

    def answers(self, node: Node, load: Sequence[list[int]], count: int = 8) -> list[list[int]]:
        """Every prompt's tokens, all asked at once."""
        return tokens([self.ask(node, prompt, count) for prompt in load])

    def in_transfer(self, node: Node) -> None:
        """A moment later: the prompts of a load take about a second to prefill, and /metrics may be 0.25 s old."""
        time.sleep(0.3)
        assert node.live.process.poll() is None

    def mend(self) -> None:
        """Everything runs, and decode engines know their prefill engines."""
        for node in (*self.prefill, *self.decode):
            if node.live.process.poll() is None:
                node.live.signal(signal.SIGCONT)
            else:
                node.restart()
        for node in self.decode:
            wait_until(lambda node=node: self.usable(node) == len(self.prefill), 40)

    def usable(self, node: Node) -> int:
        """Prefill engines that a decode engine may ask now."""
        return int(node.live.metrics()["num_usable_prefill_engines"])

    def check_empty(self) -> None:
        """Pages, rows, slots and programs of every engine come back."""
        nodes = [node for node in (*self.prefill, *self.decode) if node.live.process.poll() is None]
        wait_until(lambda: not any(node.live.metrics().get(name) for node in nodes for name in LEFT))


def tokens(asked: Sequence[Future[httpx.Response]]) -> list[list[int]]:
    """Of answers that must all have come."""
    found = []
    for future in asked:
        answer = future.result()
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["output_ids"])
    return found


@contextmanager
def storm(
    model: Path, provider: str, *, prefills: int = 2, decodes: int = 1, flags: Sequence[str] = ()
) -> Iterator[Storm]:
    """Engines, ready and acquainted."""
    common = (*FLAGS, "--disagg-provider", provider, *flags)
    controls = [free_port() for _ in range(prefills)]
    prefill = [
        Node(("--disagg-mode", "prefill", "--disagg-bootstrap-port", str(port), *common), model) for port in controls
    ]
    peers = ",".join(f"127.0.0.1:{port}" for port in controls)
    decode = [Node(("--disagg-mode", "decode", "--disagg-prefill", peers, *common), model) for _ in range(decodes)]
    with ExitStack() as stack:
        made = Storm(prefill, decode, stack.enter_context(ThreadPoolExecutor(64)))
        for node in (*prefill, *decode):
            stack.callback(lambda node=node: node.live.stop())
            node.start()
        for node in (*prefill, *decode):
            node.live.wait_ready()
        for node in decode:
            wait_until(lambda node=node: made.usable(node) == prefills)
        yield made
