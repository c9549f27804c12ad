"""A running cluster as an async context manager."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, TypeVar

import httpx

from sglang.cluster.child import Child, ChildDiedError, LogSink
from sglang.cluster.commands import Commands, ModuleCommands
from sglang.cluster.ports import check_ports
from sglang.cluster.readiness import engine_ready, router_ready
from sglang.cluster.recipe import Recipe
from sglang.srt.errors import EngineError

T = TypeVar("T")
OnReady = Callable[[str, float], None]
"""Gets (name, seconds since its start) of each process that has become ready."""
ROUTER = "router"


def plan(recipe: Recipe, commands: Commands) -> list[tuple[str, list[str]]]:
    """(name, command) of every process, in the order of starting. Raises ConfigError."""
    result = [(spec.name, commands.engine(spec)) for spec in recipe.engines]
    if recipe.router:
        result.append((ROUTER, commands.router(recipe.router, recipe.frontends)))
    return result


class Cluster:
    """Starts a recipe's processes on entry, ready to take requests, and ends them all on exit.

    Engines start together; the balancer follows when they are ready, because it registers only workers that answer.
    They end in the opposite order, so that nobody loses a partner that it still needs: balancer, decode, prefill.
    Entering raises ConfigError (a port in use), ChildDiedError, or EngineError (not ready in time).
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        on_log: LogSink,
        on_ready: OnReady = lambda name, seconds: None,
        commands: Commands | None = None,
        ready_timeout: float = 300.0,
        grace: float = 10.0,
    ) -> None:
        """`ready_timeout` and `grace` (between SIGTERM and SIGKILL) are in seconds."""
        self._recipe = recipe
        self._on_log = on_log
        self._on_ready = on_ready
        self._commands = commands or ModuleCommands()
        self._ready_timeout = ready_timeout
        self._grace = grace
        self._stages: list[list[Child]] = []

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return self._recipe.url

    @property
    def engine_urls(self) -> list[str]:
        """Addresses of all engines."""
        return [spec.url for spec in self._recipe.engines]

    @property
    def pids(self) -> dict[str, int]:
        """Process id of each process by name."""
        return {child.name: child.pid for child in self._children()}

    async def __aenter__(self) -> "Cluster":
        check_ports(self._recipe)
        commands = dict(plan(self._recipe, self._commands))
        try:
            await self._start(commands)
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def supervise(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` while the cluster lives. Raises ChildDiedError, and ends `work`, when a process dies."""
        task = asyncio.create_task(work)
        deaths = [asyncio.create_task(child.died()) for child in self._children()]
        try:
            await asyncio.wait([task, *deaths], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise next(death.result() for death in deaths if death.done())
        finally:
            await _cancel([task, *deaths])

    async def wait(self) -> None:
        """Return never; raises ChildDiedError when a process dies."""
        await self.supervise(asyncio.Event().wait())

    async def stop(self) -> None:
        """End all processes; nothing happens where they have ended already."""
        while self._stages:
            await asyncio.gather(*(child.stop(self._grace) for child in self._stages[-1]))
            self._stages.pop()

    def kill(self) -> None:
        """SIGKILL to all at once, for people who cannot wait for `stop`."""
        for child in self._children():
            child.kill()

    async def _start(self, commands: dict[str, list[str]]) -> None:
        # trust_env False: no proxy between us and our own processes
        async with httpx.AsyncClient(timeout=5.0, trust_env=False) as http:
            for specs in (self._recipe.prefill, self._recipe.frontends):
                self._stages.append([])
                for spec in specs:
                    await self._spawn(spec.name, commands[spec.name])
            await self._ready({spec.name: engine_ready(http, spec) for spec in self._recipe.engines})
            if router := self._recipe.router:
                self._stages.append([])
                await self._spawn(ROUTER, commands[ROUTER])
                await self._ready({ROUTER: router_ready(http, router, len(self._recipe.frontends))})

    async def _spawn(self, name: str, command: Sequence[str]) -> None:
        self._stages[-1].append(await Child.start(name, command, self._on_log))

    async def _ready(self, checks: dict[str, Coroutine[Any, Any, None]]) -> None:
        started, waiting = time.monotonic(), set(checks)

        async def one(name: str, check: Awaitable[None]) -> None:
            await check
            waiting.discard(name)
            self._on_ready(name, time.monotonic() - started)

        async def all_of_them() -> None:
            async with asyncio.TaskGroup() as group:
                for name, check in checks.items():
                    group.create_task(one(name, check))

        try:
            await asyncio.wait_for(self.supervise(all_of_them()), self._ready_timeout)
        except TimeoutError as error:
            names = ", ".join(sorted(waiting))
            raise EngineError(f"{names}: not ready after {self._ready_timeout:.0f} s") from error

    def _children(self) -> list[Child]:
        return [child for stage in self._stages for child in stage]


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


__all__ = ["ROUTER", "ChildDiedError", "Cluster", "OnReady", "plan"]
