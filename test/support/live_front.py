"""The HTTP application on a free port, in a thread, over a real ZeroMQ socket and a scripted scheduler."""

import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvicorn

from sglang.srt.config.server import ServerConfig
from sglang.srt.entrypoints.front import Front, Phase
from sglang.srt.entrypoints.http_protocol import BoundedHttp
from sglang.srt.entrypoints.http_server import create_app
from sglang.srt.entrypoints.scheduler_client import SchedulerClient
from sglang.srt.managers.tokenizer import Tokenizer
from sglang.srt.messages.frontend import AbortAll
from sglang.srt.observability.metrics import Metrics
from support.scripted_scheduler import ScriptedScheduler

MODEL = Path(__file__).resolve().parents[2] / "models" / "SmolLM2-135M-Instruct"


class LiveFront:
    def __init__(self, tokenizer: Tokenizer, config: ServerConfig) -> None:
        self.tokenizer = tokenizer
        self.config = config
        self.folder = tempfile.TemporaryDirectory()
        self.address = f"ipc://{self.folder.name}/s.sock"
        self.scheduler = ScriptedScheduler(self.address)
        self.started = threading.Event()

    def start(self) -> "LiveFront":
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.thread.start()
        assert self.started.wait(20), "the front did not start"
        return self

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)
        assert not self.thread.is_alive(), "the front did not stop"
        self.scheduler.stop()
        self.folder.cleanup()

    def prompt(self) -> str:
        """The newest prompt, as text."""
        return self.tokenizer.decode(self.scheduler.generated()[-1].token_ids)

    def settle(self) -> None:
        """Until nothing of earlier requests is left, nor on its way to the scheduler, as a late abort may be."""
        wait_until(lambda: not self.front.calls and not self.front.client.open_outputs)
        told = self.scheduler.seen
        before = sum(isinstance(message, AbortAll) for message in list(told))
        self.call(self.front.client.abort_all)  # comes behind all that was sent before it
        wait_until(lambda: sum(isinstance(message, AbortAll) for message in list(told)) > before)
        wait_until(lambda: not self.scheduler.running)

    def call(self, function: object) -> None:
        """Runs a function on the front's event loop."""
        self.loop.call_soon_threadsafe(function)  # type: ignore[arg-type]

    def client(self, **options: object) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=20, trust_env=False, **options)  # type: ignore[arg-type]

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        metrics = Metrics(self.config.served_model_name, "test")
        client = SchedulerClient(
            self.address, on_state=lambda state: metrics.take_snapshot(state.gauges, state.counters, state.samples)
        )
        client.start()
        self.scheduler.start()
        assert client.ready is not None
        ready = await client.ready
        self.front = Front(self.config, self.tokenizer, client, metrics, phase=Phase.READY, ready=ready)
        options = uvicorn.Config(
            create_app(self.front),
            http=BoundedHttp,
            port=0,
            log_config=None,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=2,
        )
        self.server = uvicorn.Server(options)
        serving = asyncio.create_task(self.server.serve())
        while not self.server.started:
            await asyncio.sleep(0.005)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.started.set()
        await serving
        client.close()


def wait_until(condition: object, seconds: float = 5.0) -> None:
    """Polls `condition()` until it is true; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.005)


@contextmanager
def tool_front(template: str) -> Iterator[LiveFront]:
    """A front that knows hermes' tool calls and qwen3's reasoning, with the chat template `template`."""
    tokenizer = Tokenizer.load(str(MODEL), str(MODEL), chat_template=template)
    config = ServerConfig(
        model_path=str(MODEL), served_model_name="smol", tool_call_parser="hermes", reasoning_parser="qwen3"
    )
    front = LiveFront(tokenizer, config).start()
    yield front
    front.stop()
