"""Recipes: which engines and which balancer make a cluster.

A recipe is a YAML file:

    defaults:                  # flags of every engine; an engine's own flags win
      model-path: models/SmolLM2-135M-Instruct
      threads: 1
    prefill:                   # engines that compute prompts (--disagg-mode prefill)
      - port: 31000
        disagg-bootstrap-port: 8998
    decode:                    # engines that clients reach (--disagg-mode decode)
      - port: 31100
        count: 2               # two engines; each further one takes the next port
        cores: [0, 1]          # pins engines: one list for all, or a list for each, such as [[0], [1]]
    unified:                   # engines that do both (--disagg-mode null); not beside prefill and decode
    router:                    # the balancer, sglang-router; leave it out to reach engines directly
      host: 127.0.0.1
      port: 30000
      policy: round_robin      # random, round_robin, cache_aware, power_of_two or manual
      prometheus-port: 29000
      flags: {log-level: warn} # any other flag of sglang_router.launch_router

Engines take the flags of launch_server, without the leading dashes, and `count`, `cores`, `name`. A decode engine that
names no `disagg-prefill` uses every prefill engine of the recipe.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec
import yaml

from sglang.srt.config import cli, hardware
from sglang.srt.config.resolve import resolve
from sglang.srt.config.server import DisaggMode, ServerConfig
from sglang.srt.errors import ConfigError

Policy = Literal["random", "round_robin", "cache_aware", "power_of_two", "manual"]
PORT_FLAGS = ("port", "disagg_bootstrap_port")
"""Flags that grow by one from each engine of a `count` to the next."""


class RouterSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """The `router:` section."""

    host: str = "127.0.0.1"
    port: int = 30000
    policy: Policy = "round_robin"
    prometheus_port: int = 29000
    flags: dict[str, bool | int | float | str] = {}

    @property
    def url(self) -> str:
        """Where clients reach the cluster."""
        return f"http://{self.host}:{self.port}"


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    defaults: dict[str, Any] | None = None
    prefill: list[dict[str, Any]] | None = None
    decode: list[dict[str, Any]] | None = None
    unified: list[dict[str, Any]] | None = None
    router: RouterSpec | None = None


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine to start."""

    name: str
    flags: tuple[str, ...]
    """The command line of launch_server."""
    config: ServerConfig
    """The same, resolved."""

    @property
    def url(self) -> str:
        """Its HTTP address, as seen from this machine."""
        host = "127.0.0.1" if self.config.host in ("0.0.0.0", "::") else self.config.host
        return f"http://{host}:{self.config.port}"

    def ports(self) -> Iterator[tuple[str, int]]:
        """Each (host, port) that it will listen on."""
        yield self.config.host, self.config.port
        if self.config.disagg_mode == "prefill":
            for port in self.control_ports():
                yield self.config.disagg_host, port

    def control_ports(self) -> range:
        """Of a prefill engine: one for each of its replicas."""
        first = self.config.disagg_bootstrap_port
        return range(first, first + self.config.dp_size)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A checked recipe."""

    source: str
    prefill: tuple[EngineSpec, ...]
    frontends: tuple[EngineSpec, ...]
    """The engines that answer clients: decode or unified ones."""
    router: RouterSpec | None

    @property
    def engines(self) -> tuple[EngineSpec, ...]:
        """In the order of starting."""
        return self.prefill + self.frontends

    @property
    def url(self) -> str:
        """Where clients reach the cluster: the router, else the first engine that answers clients."""
        return self.router.url if self.router else self.frontends[0].url


def find_recipe(name: str) -> Path:
    """The file of that name, or the recipe of that name that comes with the package. Raises ConfigError."""
    given = Path(name)
    packaged = Path(str(resources.files("sglang.recipes"))) / name.removeprefix("recipes/")
    for path in (given, packaged):
        if path.is_file():
            return path
    raise ConfigError(f"no recipe {name}: neither here nor among those of the package")


def load_recipe(name: str) -> Recipe:
    """Read and check a recipe. Raises ConfigError, which names the file, the engine and the key."""
    path = find_recipe(name)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return build_recipe(content or {}, str(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error


def build_recipe(content: object, source: str) -> Recipe:
    """Check a recipe's content; `source` names it in messages. Raises ConfigError."""
    try:
        file = msgspec.convert(content, _File)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}") from error
    builder = _Builder(source, file.defaults or {})
    prefill = tuple(builder.section("prefill", "prefill", file.prefill))
    peers = [f"{spec.config.disagg_host}:{port}" for spec in prefill for port in spec.control_ports()]
    decode = tuple(builder.section("decode", "decode", file.decode, peers))
    unified = tuple(builder.section("unified", "null", file.unified))
    if unified and (prefill or decode):
        raise ConfigError(f"{source}: `unified` engines do not go beside `prefill` and `decode` ones")
    if not decode and not unified:
        raise ConfigError(f"{source}: names no engine that answers clients; add `decode` or `unified`")
    recipe = Recipe(source, prefill, decode or unified, file.router)
    _check_unique(recipe)
    return recipe


def named_ports(recipe: Recipe) -> Iterator[tuple[str, str, int]]:
    """(owner, host, port) of every address that the cluster listens on."""
    for engine in recipe.engines:
        for host, port in engine.ports():
            yield engine.name, host, port
    if recipe.router:
        yield "router", recipe.router.host, recipe.router.port
        yield "router's metrics", "127.0.0.1", recipe.router.prometheus_port


def _check_unique(recipe: Recipe) -> None:
    owners: dict[int, str] = {}
    for owner, _, port in named_ports(recipe):
        if port == 0:
            raise ConfigError(f"{recipe.source}: {owner} needs a `port` other than 0")
        if port in owners:
            raise ConfigError(f"{recipe.source}: port {port} is given to both {owners[port]} and {owner}")
        owners[port] = owner
    names = [engine.name for engine in recipe.engines]
    if len(set(names)) < len(names):
        raise ConfigError(f"{recipe.source}: two engines have the same `name`")


class _Builder:
    """Turns the entries of a recipe into engines."""

    def __init__(self, source: str, defaults: Mapping[str, Any]) -> None:
        self._source = source
        self._defaults = cli.from_mapping(defaults, where=f"{source}: defaults")
        self._machine = hardware.detect()

    def section(
        self, name: str, mode: DisaggMode, entries: list[dict[str, Any]] | None, peers: list[str] | None = None
    ) -> Iterator[EngineSpec]:
        """The engines of one section. `peers` are the control ports of the prefill engines, for decode ones."""
        number = 0
        for index, entry in enumerate(entries or []):
            where = f"{self._source}: {name}[{index}]"
            own = dict(entry)
            count, cores, label = _count(own, where), own.pop("cores", None), own.pop("name", None)
            settings = self._defaults | cli.from_mapping(own, where=where)
            if settings.get("disagg_mode", mode) != mode:
                raise ConfigError(f"{where}: the section decides disagg-mode")
            settings |= {"disagg_mode": mode}
            if peers and not settings.get("disagg_prefill"):
                settings |= {"disagg_prefill": peers}
            for replica in range(count):
                title = f"{name}-{number}" if label is None else f"{label}-{replica}" if count > 1 else str(label)
                changes = _replica_changes(settings, replica) | _pinning(cores, replica, count, where)
                yield self._engine(title, settings | changes, where)
                number += 1

    def _engine(self, title: str, settings: Mapping[str, object], where: str) -> EngineSpec:
        flags = tuple(cli.to_argv(settings))
        try:
            config = resolve(settings, self._machine)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        return EngineSpec(title, flags, config)


def _count(entry: dict[str, Any], where: str) -> int:
    count = entry.pop("count", 1)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(f"{where}: count must be a whole number of at least 1, not {count!r}")
    return count


def _replica_changes(settings: Mapping[str, object], replica: int) -> dict[str, object]:
    ports = {flag: settings[flag] for flag in PORT_FLAGS if flag in settings}
    return {flag: port + replica for flag, port in ports.items() if isinstance(port, int)}


def _pinning(cores: object, replica: int, count: int, where: str) -> dict[str, object]:
    if cores is None:
        return {}
    if isinstance(cores, list) and all(isinstance(item, list) for item in cores):
        if len(cores) != count:
            raise ConfigError(f"{where}: cores has {len(cores)} lists for {count} engines")
        return {"cpu_cores": cores[replica]}
    return {"cpu_cores": cores}
