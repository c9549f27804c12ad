"""`launch_cluster` over fake engines: python fake_cluster.py RECIPE [flags] -- [NAME:FLAG[=VALUE] ...].

What follows `--` are flags of fake_openai_server.py for single engines, such as `decode-0:--die-after=1`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from sglang.cluster.commands import ModuleCommands
from sglang.cluster.recipe import EngineSpec
from sglang.launch_cluster import main

SERVER = Path(__file__).with_name("fake_openai_server.py")


class FakeCommands(ModuleCommands):
    """Real balancer, fake engines."""

    def __init__(self, extra: Sequence[str]) -> None:
        self._extra = [item.split(":", 1) for item in extra]

    def engine(self, spec: EngineSpec) -> list[str]:
        """The fake server on the engine's port."""
        own = [flag for name, flag in self._extra if name == spec.name]
        config = spec.config
        flags = ["--port", str(config.port), "--model", config.model_path, "--disagg-mode", config.disagg_mode]
        return [sys.executable, "-u", str(SERVER), *flags, *own]


if __name__ == "__main__":
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    sys.exit(main(sys.argv[1:cut], FakeCommands(sys.argv[cut + 1 :])))
