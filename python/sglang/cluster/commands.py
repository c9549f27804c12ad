"""The command lines of a cluster's processes."""

import importlib.util
import sys
from collections.abc import Sequence
from typing import Protocol

from sglang.cluster.recipe import EngineSpec, RouterSpec
from sglang.srt.errors import ConfigError


class Commands(Protocol):
    """Says how engines and the balancer are started. Tests bring their own."""

    def engine(self, spec: EngineSpec) -> list[str]:
        """The command of one engine."""

    def router(self, spec: RouterSpec, workers: Sequence[EngineSpec]) -> list[str]:
        """The command of the balancer over `workers`. Raises ConfigError where there is no balancer."""


class ModuleCommands:
    """launch_server and sglang-router, under this interpreter. `-u`: a log that is not buffered is there in time."""

    def engine(self, spec: EngineSpec) -> list[str]:
        """See Commands."""
        return [sys.executable, "-u", "-m", "sglang.launch_server", *spec.flags]

    def router(self, spec: RouterSpec, workers: Sequence[EngineSpec]) -> list[str]:
        """See Commands.

        sglang_router names the `sglang` package only where it launches servers itself, and in its Python test balancer,
        which tolerates that the module it wants is missing; its native router works beside any `sglang`.
        """
        if importlib.util.find_spec("sglang_router") is None:
            raise ConfigError("the recipe has a router: pip install 'sglang[router]', or leave `router` out")
        command = [sys.executable, "-u", "-m", "sglang_router.launch_router"]
        command += ["--worker-urls", *(worker.url for worker in workers)]
        command += ["--host", spec.host, "--port", str(spec.port), "--policy", spec.policy]
        # its metrics would listen on every address otherwise
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(spec.prometheus_port)]
        if key := workers[0].config.api_key:
            command += ["--api-key", key]
        for name, value in ({"log-level": "warn"} | spec.flags).items():
            if value is not False:
                command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return command
