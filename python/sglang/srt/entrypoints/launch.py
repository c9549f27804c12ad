"""Composition of the HTTP process: socket, scheduler process, tokenizer, application; and its life."""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvicorn
import uvloop

from sglang.srt.config.overrides import model_overrides
from sglang.srt.config.replica import replica_config
from sglang.srt.config.server import ServerConfig
from sglang.srt.entrypoints.front import Front, Phase
from sglang.srt.entrypoints.http_protocol import BoundedHttp
from sglang.srt.entrypoints.http_server import create_app
from sglang.srt.entrypoints.replicas import EngineClient, Replicas
from sglang.srt.entrypoints.scheduler_client import SchedulerClient
from sglang.srt.entrypoints.scheduler_launch import SCHEDULER, SchedulerProcess, exit_code_of
from sglang.srt.entrypoints.tracing import open_exporter
from sglang.srt.errors import CheckpointError, ConfigError, EngineError, RequestError
from sglang.srt.managers.model_folder import read_model_folder
from sglang.srt.managers.tokenizer import Tokenizer
from sglang.srt.messages.frontend import State
from sglang.srt.model_executor.dp.lockstep import Lockstep, lockstep_memory
from sglang.srt.observability.logs import setup_logging
from sglang.srt.observability.metrics import Metrics

WARMUP_DEADLINE_S = 120.0
STOP_PATIENCE_S = 5.0
"""A drained scheduler only has to release its memory; one that does not is stuck."""
BACKLOG = 2048
GC_THRESHOLD = 10_000
"""New objects between young collections. The default of 700 is passed by every few requests."""

_log = logging.getLogger("sglang.launch")


def serve(config: ServerConfig, command: Sequence[str] = SCHEDULER) -> int:
    """Runs an engine until it is told to stop or dies; returns the exit code. `command` starts the scheduler."""
    role = "engine" if config.disagg_mode == "null" else config.disagg_mode
    setup_logging(role, config.log_level, log_requests=config.log_requests)
    if config.cpu_cores:
        os.sched_setaffinity(0, config.cpu_cores)
    try:
        listener = _bind(config.host, config.port)
    except OSError as error:
        flag = "--host" if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL else "--port"
        return _fail(f"{flag}: cannot listen on {config.host}:{config.port}: {error.strerror or error}")
    with listener:
        try:
            read_model_folder(Path(config.model_path), model_overrides(config))
            return _serve_on(listener, config, command)
        except (CheckpointError, ConfigError) as error:
            return _fail(str(error), 2)


def _serve_on(listener: socket.socket, config: ServerConfig, command: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="sglang-") as private:
        addresses = [f"ipc://{private}/scheduler{rank}.sock" for rank in range(config.dp_size)]
        children: list[SchedulerProcess] = []
        shared = lockstep_memory(config.dp_size) if config.enable_dp_attention else None
        lockstep = None if shared is None else Lockstep(shared, 0, config.dp_size)
        try:
            for rank, address in enumerate(addresses):
                children.append(SchedulerProcess(replica_config(config, rank), address, command, shared))
            tokenizer = Tokenizer.load(
                config.model_path,
                config.tokenizer_path,
                chat_template=config.chat_template,
                trust_remote_code=config.trust_remote_code,
                overrides=model_overrides(config),
            )
            process = HttpProcess(config, tokenizer, children, Path(private), lockstep)
            return uvloop.run(process.run(listener, addresses))
        finally:
            for child in children:
                child.let_go()
            for child in children:
                child.stop(STOP_PATIENCE_S)


class HttpProcess:
    """One run of the server: everything that lives on its event loop."""

    def __init__(
        self,
        config: ServerConfig,
        tokenizer: Tokenizer,
        children: Sequence[SchedulerProcess],
        private: Path,
        lockstep: Lockstep | None,
    ) -> None:
        """`private`: the folder of the sockets to the children. `lockstep`: what they step in together, where none of
        them goes on without another.
        """
        self._config = config
        self._tokenizer = tokenizer
        self._children = children
        self._private = private
        self._lockstep = lockstep
        self._code = 0
        self._signals = 0
        self._alive = len(children)
        self._draining = False
        self._free_to_go = asyncio.Event()
        """Every scheduler has ended, or a second signal forbids to wait for them."""

    async def run(self, listener: socket.socket, addresses: Sequence[str]) -> int:
        """Serves on `listener` until a signal or the scheduler's death; returns the exit code."""
        host, port = listener.getsockname()[:2]
        metrics = Metrics(self._config.served_model_name, f"{host}:{port}")

        def on_state(state: State) -> None:
            metrics.take_snapshot(state.gauges, state.counters, state.samples)

        self._client: EngineClient = (
            SchedulerClient(addresses[0], on_state=on_state)
            if len(addresses) == 1
            else Replicas(addresses, on_state=on_state)
        )
        self._client.start()
        spans = open_exporter(self._config, "http")
        self._front = Front(self._config, self._tokenizer, self._client, metrics, spans=spans)
        self._server = _Server(_uvicorn_config(self._front))
        for child in self._children:
            child.watch(self._child_ended)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told_to_stop)
        starting = asyncio.create_task(self._start(f"http://{host}:{port}"))
        try:
            await self._server.serve([listener])
            if self._draining:
                # A prefill engine has no requests here, and yet transfers to finish and peers to part from.
                await self._free_to_go.wait()
        finally:
            starting.cancel()
            self._client.close()
            if spans is not None:
                await asyncio.to_thread(spans.close)
        return self._code

    async def _start(self, url: str) -> None:
        """Waits for the scheduler and for a first token, then opens the doors."""
        assert self._client.ready is not None
        try:
            self._front.ready = ready = await self._client.ready
            if not self._config.skip_server_warmup and self._config.disagg_mode != "prefill":
                await self._front.generate_one_token(WARMUP_DEADLINE_S)
        except (EngineError, RequestError) as error:
            if self._client.dead is None:
                self._leave(f"warm-up failed: {error}", 1)
            return
        if self._front.phase is Phase.STARTING:
            self._front.phase = Phase.READY
        # All are connected, so the sockets' names have served; a killed process could not remove them.
        shutil.rmtree(self._private, ignore_errors=True)
        # What start-up made (routes, schemas, the vocabulary) stays: collections need not walk it while streams wait.
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 20, 20)
        _log.info(
            "ready at %s: model %s, context %d, KV pool %d tokens, page size %d",
            url,
            self._config.served_model_name,
            ready.context_length,
            ready.max_total_tokens,
            ready.page_size,
        )

    def _child_ended(self, code: int) -> None:
        self._alive -= 1
        if not self._alive:
            self._free_to_go.set()
        if self._lockstep is not None and (code or not self._signals):
            self._lockstep.give_up()
        if self._signals:
            if code or not self._alive:  # a replica that has finished leaves the others to theirs
                self._client.died("the server is stopping")
            return
        started = self._front.ready is not None
        self._client.died("the engine died" if started else "the engine failed to start")
        reason = "the engine died" if started else "the engine failed to start; its reason is above"
        self._leave(f"{reason} (exit code {code})", exit_code_of(code))

    def _leave(self, message: str, code: int) -> None:
        _log.error("%s", message)
        self._code = code
        self._server.should_exit = True

    def _told_to_stop(self) -> None:
        """First signal: finish what runs. Second: at once."""
        self._signals += 1
        self._front.phase = Phase.DRAINING
        self._server.should_exit = True
        if self._signals == 1:
            _log.info("stopping: %d outputs to finish", self._client.open_outputs)
            if self._front.ready is None:
                self._client.died("the server is stopping")
            else:
                self._draining = True
                self._client.shutdown(drain=True)
        else:
            self._code = 1
            self._client.died("the server was stopped")
            self._server.force_exit = True
            self._free_to_go.set()


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers, which would exit with the signal's code."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to HttpProcess."""
        yield


def _uvicorn_config(front: Front) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(front),
        http=BoundedHttp,
        log_config=None,
        access_log=front.config.log_requests,
        lifespan="off",
        ws="none",
        server_header=False,
        backlog=BACKLOG,
    )


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError where the address is taken or not this machine's."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Only listening makes a second server that was started at the same time fail too.
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _fail(message: str, code: int = 1) -> int:
    """2: a setting or a model folder is wrong, as the scheduler process says it too."""
    sys.stderr.write(f"sglang launch-server: {message}\n")
    return code
