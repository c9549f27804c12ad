"""Composition root of a disaggregated engine: fabric, control plane and role, put together from the configuration."""

import os
import re
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import zmq

from sglang.srt.config.server import ServerConfig
from sglang.srt.core.layout import ShardLayout
from sglang.srt.core.trace import Tracer
from sglang.srt.disaggregation.handoff.immediates import MAX_SLOTS, WEIGHT_BITS
from sglang.srt.disaggregation.messenger.fabric import FabricMessenger, PoolMemory
from sglang.srt.disaggregation.roles.decode import DecodeRole
from sglang.srt.disaggregation.roles.prefill import PrefillRole
from sglang.srt.disaggregation.roles.settings import RoleSettings
from sglang.srt.ipc.curve import client_keys, server_keys
from sglang.srt.ipc.zmq_link import DialLink, ListenLink, control_codec
from sglang.srt.managers.role import Role
from sglang.srt.messages.wire import ToDecode, ToPrefill

MIN_SLOTS = 4096
"""Counting slots of a decode engine, so that one is reused late and its strays are recognised."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """A role and what the scheduler's waiter must listen to for it."""

    role: Role
    sources: Sequence["zmq.Socket[bytes] | int"]


def role_settings(config: ServerConfig) -> RoleSettings:
    """The --disagg-* flags that concern timing and bounds."""
    return RoleSettings(
        heartbeat_s=config.disagg_heartbeat_s,
        heartbeat_misses=config.disagg_heartbeat_misses,
        ask_timeout_s=config.disagg_ask_timeout_s,
        wait_s=config.disagg_wait_s,
        local_tokens=config.disagg_local_prefill_tokens,
        fallback_local=config.disagg_fallback == "local",
        max_asks=config.disagg_max_asks,
        slots=min(max(MIN_SLOTS, config.max_running_requests), MAX_SLOTS),
    )


def open_messenger(config: ServerConfig, settings: RoleSettings) -> FabricMessenger:
    """Phase one of the fabric; its counter goes into the worker's layer hook."""
    return FabricMessenger(
        provider=config.disagg_provider,
        node=config.disagg_host,
        weight_bits=WEIGHT_BITS,
        slots=settings.slots,
        layerwise=config.disagg_send == "layerwise",
    )


def engine_id(config: ServerConfig) -> str:
    """How peers know this engine: host name, HTTP port (or process, where the system chose the port) and replica."""
    host = re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname()) or "host"
    replica = f"/dp{config.dp_rank}" if config.dp_size > 1 else ""
    return f"{host}:{config.port or f'pid{os.getpid()}'}{replica}"


def assemble(
    config: ServerConfig,
    settings: RoleSettings,
    messenger: FabricMessenger,
    pools: Sequence[PoolMemory],
    layout: ShardLayout,
    *,
    context: int,
    vocabulary: int,
    tracer: Tracer,
) -> Assembled:
    """Start the fabric and join it with the control plane. Raises ConfigError for an address that cannot be used."""
    messenger.start(pools, layout)
    incarnation = secrets.randbits(63)
    if config.disagg_mode == "decode":
        dial: DialLink[ToDecode, ToPrefill] = DialLink(
            {name: f"tcp://{name}" for name in config.disagg_prefill},
            identity=engine_id(config),
            incoming=control_codec(ToDecode),
            outgoing=control_codec(ToPrefill),
            keys=client_keys(Path(config.disagg_keys)) if config.disagg_keys else None,
        )
        decode = DecodeRole(
            messenger=messenger,
            link=dial,
            layout=layout,
            peers=config.disagg_prefill,
            incarnation=incarnation,
            settings=settings,
            tracer=tracer,
        )
        return Assembled(decode, (*dial.sockets, messenger.fileno()))
    listen: ListenLink[ToPrefill, ToDecode] = ListenLink(
        f"tcp://{config.disagg_host}:{config.disagg_bootstrap_port}",
        incoming=control_codec(ToPrefill),
        outgoing=control_codec(ToDecode),
        keys=server_keys(Path(config.disagg_keys)) if config.disagg_keys else None,
    )
    prefill = PrefillRole(
        messenger=messenger,
        link=listen,
        layout=layout,
        incarnation=incarnation,
        context=context,
        vocabulary=vocabulary,
        settings=settings,
        tracer=tracer,
    )
    return Assembled(prefill, (*listen.sockets, messenger.fileno()))
