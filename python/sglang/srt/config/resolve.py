"""Raw settings -> a complete, checked, frozen `ServerConfig`. Pure: what it knows of the machine it is given."""

import ipaddress
import re
from collections.abc import Callable, Mapping

import msgspec

from sglang.srt.config.hardware import Hardware
from sglang.srt.config.overrides import parse_overrides
from sglang.srt.config.server import ServerConfig
from sglang.srt.errors import ConfigError

_Check = tuple[Callable[[ServerConfig], bool], str]

# (what must hold, the message when it does not). Every message starts with the flag to change.
_CHECKS: tuple[_Check, ...] = (
    (lambda c: bool(c.model_path), "--model-path: give the folder of a model"),
    (lambda c: 0 <= c.port <= 65535, "--port: must be 0..65535 (0 lets the system choose)"),
    (lambda c: c.stream_interval >= 1, "--stream-interval: must be at least 1"),
    (lambda c: c.watchdog_timeout > 0, "--watchdog-timeout: must be positive"),
    (lambda c: c.context_length >= 0, "--context-length: must not be negative"),
    (lambda c: 0 < c.mem_fraction_static < 1, "--mem-fraction-static: must lie between 0 and 1"),
    (lambda c: c.max_running_requests >= 1, "--max-running-requests: must be at least 1"),
    (
        lambda c: c.cuda_graph_max_bs >= 0,
        "--cuda-graph-max-bs: must not be negative; --disable-cuda-graph records nothing",
    ),
    (lambda c: c.max_queued_requests >= 0, "--max-queued-requests: must not be negative"),
    (lambda c: 1 <= c.page_size <= 128, "--page-size: must be 1..128"),
    (lambda c: c.max_total_tokens >= 0, "--max-total-tokens: must not be negative"),
    (
        lambda c: c.max_total_tokens == 0 or c.max_total_tokens >= c.page_size,
        "--max-total-tokens: must hold at least one page (--page-size)",
    ),
    (lambda c: c.chunked_prefill_size >= 1, "--chunked-prefill-size: must be positive, or -1 for no chunks"),
    (lambda c: c.max_prefill_tokens >= 1, "--max-prefill-tokens: must be at least 1"),
    (lambda c: c.schedule_conservativeness > 0, "--schedule-conservativeness: must be positive"),
    (lambda c: c.decode_log_interval >= 1, "--decode-log-interval: must be at least 1"),
    (
        lambda c: not (c.schedule_policy == "lpm" and c.disable_radix_cache),
        "--schedule-policy lpm: orders by cached prefix, so it cannot go with --disable-radix-cache",
    ),
    (
        lambda c: not c.is_embedding or c.disagg_mode == "null",
        "--is-embedding: an embedding engine decodes nothing, so it cannot go with --disagg-mode",
    ),
    (lambda c: 1 <= c.tp_size <= 64, "--tp-size: must be 1..64"),
    (lambda c: c.ep_size >= 1 and c.tp_size % c.ep_size == 0, "--ep-size: must divide --tp-size"),
    (lambda c: 1 <= c.dp_size <= 64, "--dp-size: must be 1..64"),
    (
        lambda c: not c.enable_dp_attention or c.dp_size == c.tp_size > 1,
        "--enable-dp-attention: --dp-size must equal --tp-size, 2 or more: each rank attends alone",
    ),
    (
        lambda c: not c.enable_dp_attention or c.ep_size == c.tp_size,
        "--enable-dp-attention: --ep-size must equal --tp-size: experts are divided among all ranks",
    ),
    (lambda c: c.threads >= 1, "--threads: must be at least 1"),
    (lambda c: c.grammar_compile_timeout >= 1, "--grammar-compile-timeout: must be at least 1 second"),
    (
        lambda c: 1 <= c.disagg_bootstrap_port <= 65536 - c.dp_size,
        "--disagg-bootstrap-port: must be 1..65535, with as many further ports as --dp-size has replicas",
    ),
    (
        lambda c: c.disagg_mode != "prefill" or not 0 <= c.port - c.disagg_bootstrap_port < c.dp_size,
        "--disagg-bootstrap-port: must differ from --port",
    ),
    (
        lambda c: c.disagg_mode == "decode" or not c.disagg_prefill,
        "--disagg-prefill: only --disagg-mode decode has prefill engines",
    ),
    (
        lambda c: c.disagg_mode != "decode" or bool(c.disagg_prefill) or c.disagg_fallback == "local",
        "--disagg-prefill: --disagg-mode decode needs the HOST:PORT of a prefill engine (or --disagg-fallback local)",
    ),
    (lambda c: c.disagg_local_prefill_tokens >= 0, "--disagg-local-prefill-tokens: must not be negative"),
    (lambda c: c.disagg_max_asks >= 1, "--disagg-max-asks: must be at least 1"),
    (lambda c: c.disagg_heartbeat_s > 0, "--disagg-heartbeat-s: must be positive"),
    (lambda c: c.disagg_heartbeat_misses >= 1, "--disagg-heartbeat-misses: must be at least 1"),
    (lambda c: c.disagg_ask_timeout_s > 0, "--disagg-ask-timeout-s: must be positive"),
    (lambda c: c.disagg_wait_s >= 0, "--disagg-wait-s: must not be negative"),
    (
        lambda c: c.disagg_mode == "null" or bool(c.disagg_keys) or c.disagg_insecure or is_loopback(c.disagg_host),
        "--disagg-host: off loopback the control plane needs --disagg-keys FOLDER (or --disagg-insecure)",
    ),
)


def resolve(settings: Mapping[str, object], machine: Hardware) -> ServerConfig:
    """Completes `settings` (keyed by field) and checks their combination.

    Raises ConfigError with one line that names the flag.
    """
    raw = dict(settings)
    if not raw.get("model_path"):
        raise ConfigError("--model-path: required; give the folder of a model")
    if "cpu_cores" in raw:
        raw["cpu_cores"] = parse_cores(raw["cpu_cores"])
    if "disagg_prefill" in raw:
        raw["disagg_prefill"] = [peer for part in _parts(raw["disagg_prefill"]) for peer in _peers(part)]
    config = _complete(_convert(raw))
    for holds, message in _CHECKS:
        if not holds(config):
            raise ConfigError(message)
    parse_overrides(config.json_model_override_args)
    for peer in config.disagg_prefill:
        _check_peer(peer)
    missing = sorted(set(config.cpu_cores) - set(machine.cores))
    if missing:
        raise ConfigError(f"--cpu-cores: this process may not use core {', '.join(map(str, missing))}")
    return config


def is_loopback(host: str) -> bool:
    """Whether `host` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def parse_cores(value: object) -> list[int]:
    """`0-3,6`, a number or a list of numbers -> core numbers, ascending. Raises ConfigError."""
    cores: set[int] = set()
    for part in _parts(value):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part)
        if match is None:
            raise ConfigError(f"--cpu-cores: {part!r} is neither a core nor a range of cores")
        first = int(match[1])
        cores.update(range(first, int(match[2] or first) + 1))
    return sorted(cores)


def _parts(value: object) -> list[str]:
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return [part for part in re.split(r"[,\s]+", text) if part]


def _peers(part: str) -> list[str]:
    """`HOST:FIRST-LAST` is one peer for each port."""
    match = re.fullmatch(r"(.+):(\d{1,5})-(\d{1,5})", part)
    if match is None:
        return [part]
    return [f"{match[1]}:{port}" for port in range(int(match[2]), int(match[3]) + 1)]


def _convert(raw: dict[str, object]) -> ServerConfig:
    try:
        return msgspec.convert(raw, ServerConfig)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$.")
        flag = "--" + path.rstrip("`").split("[")[0].replace("_", "-") if path else "configuration"
        raise ConfigError(f"{flag}: {text[:1].lower()}{text[1:]}") from error


def _complete(config: ServerConfig) -> ServerConfig:
    chunk = config.max_prefill_tokens if config.chunked_prefill_size == -1 else config.chunked_prefill_size
    return msgspec.structs.replace(
        config,
        tokenizer_path=config.tokenizer_path or config.model_path,
        served_model_name=config.served_model_name or config.model_path,
        chunked_prefill_size=min(chunk, config.max_prefill_tokens),
    )


def _check_peer(peer: str) -> None:
    host, separator, port = peer.rpartition(":")
    if not (separator and host and port.isdigit() and 1 <= int(port) <= 65535):
        raise ConfigError(f"--disagg-prefill: {peer!r} is not HOST:PORT")
