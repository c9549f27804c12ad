"""The engines behind `sglang.Engine`: one child process, or two of them with disaggregation."""

import asyncio
import socket
import tempfile
from collections.abc import Mapping

from sglang.srt.config.cli import from_mapping
from sglang.srt.config.hardware import detect
from sglang.srt.config.resolve import resolve
from sglang.srt.config.server import ServerConfig
from sglang.srt.entrypoints.scheduler_client import SchedulerClient
from sglang.srt.entrypoints.scheduler_launch import SchedulerProcess
from sglang.srt.errors import ConfigError
from sglang.srt.messages.frontend import Ready, State

LOOPBACK = "127.0.0.1"


def offline_configs(settings: Mapping[str, object], disagg: bool | Mapping[str, object]) -> list[ServerConfig]:
    """The configuration of each engine; the one that answers is the first. Raises ConfigError."""
    own = from_mapping(settings, where="Engine")
    if disagg is False:
        configs = [resolve(own, detect())]
    else:
        taken = sorted(key for key in own if key in ("disagg_mode", "disagg_prefill", "disagg_bootstrap_port"))
        if taken:
            raise ConfigError(f"{taken[0]}: Engine(disagg=...) chooses it itself")
        port = _free_port()
        theirs = {} if disagg is True else from_mapping(disagg, where="Engine(disagg=...)")
        prefill = {**own, **theirs, "disagg_mode": "prefill", "disagg_bootstrap_port": port}
        decode = {**own, "disagg_mode": "decode", "disagg_prefill": [f"{LOOPBACK}:{port}"]}
        configs = [resolve(decode, detect()), resolve(prefill, detect())]
    if any(config.dp_size > 1 for config in configs):
        raise ConfigError("dp_size: the offline Engine is one replica; make several, or launch a server")
    return configs


def _free_port() -> int:
    """A port that nothing listens on now; the prefill engine says so if another program takes it first."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


class OfflineEngines:
    """Child processes and the connections to them. What it returns of all is in the order of `configs`."""

    def __init__(self, configs: list[ServerConfig]) -> None:
        """Starts the processes; the connections follow with `start`."""
        self._folder = tempfile.TemporaryDirectory(prefix="sglang-")
        self._clients: list[SchedulerClient] = []
        self._addresses = [f"ipc://{self._folder.name}/{number}.sock" for number in range(len(configs))]
        self._configs = configs
        self._children: list[SchedulerProcess] = []
        for config, address in zip(configs, self._addresses, strict=True):
            self._children.append(SchedulerProcess(config, address))

    @property
    def client(self) -> SchedulerClient:
        """The connection to the engine that answers."""
        return self._clients[0]

    async def start(self) -> Ready:
        """Waits for every engine. Raises EngineError where one does not start; its reason is on stderr."""
        for config, address, child in zip(self._configs, self._addresses, self._children, strict=True):
            client = SchedulerClient(address)
            client.start()
            self._clients.append(client)
            child.watch(lambda code, mode=config.disagg_mode: self._died(mode, code))  # type: ignore[misc]
        waiting = [client.ready for client in self._clients if client.ready is not None]
        first = (await asyncio.gather(*waiting))[0]
        self._folder.cleanup()  # all are connected: the sockets' names have served, and a killed process leaves none
        return first

    async def flush_cache(self) -> int:
        """Drops cached pages that no request uses; returns how many."""
        return sum(await asyncio.gather(*(client.flush_cache() for client in self._clients)))

    async def states(self) -> list[tuple[str, State]]:
        """(disagg mode, its state) of every engine."""
        found = await asyncio.gather(*(client.get_state() for client in self._clients))
        return [(config.disagg_mode, state) for config, state in zip(self._configs, found, strict=True)]

    async def profile(self, *, start: bool, folder: str = "") -> str:
        """Begins or ends a torch profile of every engine; returns their files, separated by spaces."""
        return " ".join(await asyncio.gather(*(client.profile(start=start, folder=folder) for client in self._clients)))

    async def close(self) -> None:
        """Ends the connections."""
        for client in self._clients:
            client.shutdown(drain=False)
            client.close()

    def stop(self, patience_s: float) -> None:
        """Ends the processes, after `close`."""
        for child in self._children:
            child.let_go()
        for child in self._children:
            child.stop(patience_s)
        self._folder.cleanup()

    def _died(self, mode: str, code: int) -> None:
        """One engine cannot go on without the other."""
        which = "the engine" if mode == "null" else f"the {mode} engine"
        for client in self._clients:
            client.died(f"{which} ended (exit code {code}); its reason is above")
