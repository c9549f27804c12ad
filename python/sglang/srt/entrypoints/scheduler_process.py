"""The scheduler process: composition of worker, page cache, role and loop. Started by the HTTP process, never by hand.

python -m sglang.srt.entrypoints.scheduler_process --address ipc://... [--lockstep FD]

ServerConfig comes as one JSON line on stdin; FD is memory that the replicas of --enable-dp-attention share.
"""

import argparse
import faulthandler
import gc
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from sglang.srt.config.model import ModelSpec, read_model_spec
from sglang.srt.config.overrides import model_overrides
from sglang.srt.config.server import ServerConfig
from sglang.srt.constrained.open import open_grammars
from sglang.srt.constrained.service import GrammarService
from sglang.srt.core.clock import MonotonicClock
from sglang.srt.core.layout import ShardLayout
from sglang.srt.core.trace import Tracer
from sglang.srt.disaggregation.assemble import Assembled, assemble, open_messenger, role_settings
from sglang.srt.disaggregation.counter.hook import CounterHook, TracedCounterHook
from sglang.srt.disaggregation.messenger.fabric import FabricMessenger
from sglang.srt.entrypoints.parent import ParentChannel, ParentWatch, exit_within
from sglang.srt.entrypoints.tracing import open_tracer
from sglang.srt.entrypoints.watchdog import Watchdog, WatchedChannel
from sglang.srt.entrypoints.workers import Workers, build_workers, pooling_of
from sglang.srt.errors import CheckpointError, ConfigError
from sglang.srt.ipc.waiter import ZmqWaiter
from sglang.srt.ipc.zmq_channel import ZmqChannel
from sglang.srt.kv_pool.shareable import SharedMemory
from sglang.srt.managers.limits import Limits
from sglang.srt.managers.role import UnifiedRole
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.cache_manager import CacheManager
from sglang.srt.messages.codec import Codec
from sglang.srt.messages.frontend import Ready, ToFrontend, ToScheduler
from sglang.srt.model_executor.dp.lockstep import Lockstep, lockstep_bytes
from sglang.srt.model_executor.hooks import NullHook
from sglang.srt.model_executor.profiler import TorchProfiler
from sglang.srt.models.base import LayerHook
from sglang.srt.observability.logs import setup_logging

LOG = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 1e-4
"""How long the loop may keep the GIL while the compute thread waits to start its next kernel. Beside a thread that
plans for 2 ms in every 10, four rows of SmolLM2-135M took 33 ms a step at best, 71 with Python's own 5 ms (both cores
busy with other work; median of 25 ratios 1.08)."""

CLEANUP_S = 3.0
"""Time that a broken engine has to leave its peers and its shared memory: its compute thread may hang for ever."""


def limits_of(config: ServerConfig, spec: ModelSpec) -> Limits:
    """The flags that bound the scheduler."""
    return Limits(
        max_running=config.max_running_requests,
        max_queued=config.max_queued_requests,
        chunk=config.chunked_prefill_size,
        max_prefill=config.max_prefill_tokens,
        context=config.context_length or spec.max_positions,
        layers=spec.num_layers,
        policy=config.schedule_policy,
        mixed=config.enable_mixed_chunk,
        depth=1 if config.disable_overlap_schedule else 2,
        conservativeness=config.schedule_conservativeness,
        stream_interval=config.stream_interval,
        log_interval=config.decode_log_interval,
        check_invariants=config.debug_invariants,
        step_timeout=config.watchdog_timeout,
    )


def reuses_prefixes(config: ServerConfig) -> bool:
    """Whether cached KV may stand for the beginning of a prompt: a mean needs the hidden states of all of it."""
    return not config.disable_radix_cache and pooling_of(config) != "mean"


def layer_hook(config: ServerConfig, messenger: FabricMessenger, tracer: Tracer) -> LayerHook:
    """Only a prefill engine's layers are watched."""
    if config.disagg_mode != "prefill":
        return NullHook()
    return TracedCounterHook(messenger.counter, tracer) if tracer.enabled else CounterHook(messenger.counter)


@dataclass(frozen=True, slots=True)
class Parts:
    """What every mode has."""

    workers: Workers
    grammars: GrammarService | None
    assembled: Assembled


def build(config: ServerConfig, spec: ModelSpec, tracer: Tracer, lockstep: Lockstep | None) -> Parts:
    """Load, allocate and connect. The fabric opens before the weights load: a wrong provider shows at once."""
    grammars = open_grammars(config, spec.vocab_size, spec.eos_token_ids)
    if grammars is not None and config.grammar_warmup:
        grammars.warm()
    if config.disagg_mode == "null":
        workers = build_workers(config, spec, NullHook(), grammars, lockstep)
        return Parts(workers, grammars, Assembled(UnifiedRole(), ()))
    settings = role_settings(config)
    messenger = open_messenger(config, settings)
    with ExitStack() as undo:
        # An engine that fails to start must not leave its fabric's shared memory behind.
        undo.callback(messenger.close)
        hook = layer_hook(config, messenger, tracer)
        workers = build_workers(config, spec, hook, grammars, lockstep, shared=messenger.needs_shared_memory)
        undo.callback(workers.worker.close)
        if lockstep is not None:
            undo.callback(lockstep.give_up)  # before the close, which would wait for the other replicas to leave
        assembled = assemble(
            config,
            settings,
            messenger,
            workers.memory(),
            workers.pool.layout,
            context=config.context_length or spec.max_positions,
            vocabulary=spec.vocab_size,
            tracer=tracer,
        )
        undo.pop_all()
    LOG.info("fabric %s through %s", messenger.provider, messenger.library)
    return Parts(workers, grammars, assembled)


def open_lockstep(config: ServerConfig, descriptor: int) -> Lockstep | None:
    """This replica's end of what those of --enable-dp-attention share."""
    if not config.enable_dp_attention:
        return None
    memory = SharedMemory(descriptor, lockstep_bytes(config.dp_size))
    memory.close()
    return Lockstep(memory, config.dp_rank, config.dp_size)


def run(config: ServerConfig, address: str, lockstep: Lockstep | None) -> None:
    """Build the engine, say Ready, turn the loop until told to leave."""
    spec = read_model_spec(Path(config.model_path), model_overrides(config))
    parent = ParentWatch()
    wire = ZmqChannel(
        address, incoming=Codec[ToScheduler](ToScheduler), outgoing=Codec[ToFrontend](ToFrontend), bind=False
    )
    tracer = open_tracer(config)
    parts = build(config, spec, tracer, lockstep)
    profiler = TorchProfiler(parts.workers.worker, f"{config.disagg_mode}-{config.port}")
    channel = WatchedChannel(ParentChannel(wire, parent), Watchdog(config.watchdog_timeout), profiler)
    limits = limits_of(config, spec)
    sources: Sequence[zmq.Socket[bytes] | int] = (
        wire.socket,
        parts.workers.worker.fileno(),
        parent.fileno(),
        *(() if parts.grammars is None else (parts.grammars.fileno(),)),
        *parts.assembled.sources,
    )
    layout = parts.workers.pool.layout
    scheduler = Scheduler(
        limits=limits,
        cache=CacheManager(num_pages=layout.num_pages, page_size=config.page_size, reuse=reuses_prefixes(config)),
        worker=parts.workers.worker,
        role=parts.assembled.role,
        channel=channel,
        waiter=ZmqWaiter(sources),
        clock=MonotonicClock(),
        tracer=tracer,
        seed=config.random_seed,
        grammars=parts.grammars,
    )
    _announce(config, limits, layout, channel)
    # What start-up made stays: full collections need not walk it again and again while steps wait.
    gc.collect()
    gc.freeze()
    try:
        scheduler.run()
    except BaseException:
        LOG.exception("the engine cannot go on; stacks of all threads:")
        if lockstep is not None:
            lockstep.give_up()
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        exit_within(CLEANUP_S, 1)
        raise
    finally:
        scheduler.close()
        channel.close()


def _announce(config: ServerConfig, limits: Limits, layout: ShardLayout, channel: WatchedChannel) -> None:
    tokens = layout.num_pages * config.page_size
    LOG.info("ready: %d KV pages of %d tokens, %d rows", layout.num_pages, config.page_size, limits.max_running)
    channel.send(
        Ready(
            max_total_tokens=tokens,
            max_running_requests=limits.max_running,
            context_length=limits.context,
            page_size=config.page_size,
            model=layout.kv.model,
            role=config.disagg_mode,
        )
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 2 for what the user can mend, 1 for a broken engine, 0 after a Shutdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--lockstep", type=int, default=-1)
    arguments = parser.parse_args(argv)
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=ServerConfig)
    role = "engine" if config.disagg_mode == "null" else config.disagg_mode
    name = f"{role} dp{config.dp_rank}" if config.dp_size > 1 else role
    setup_logging(name, config.log_level, log_requests=config.log_requests)
    faulthandler.enable()  # a crash in native code leaves every thread's stack in the log
    if config.cpu_cores:
        os.sched_setaffinity(0, config.cpu_cores)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        run(config, arguments.address, open_lockstep(config, arguments.lockstep))
    except (ConfigError, CheckpointError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except Exception as error:
        LOG.exception("the engine ended: %s", type(error).__name__)
        return 1
    return 0


if __name__ == "__main__":
    # The compute thread may hang in a kernel; the interpreter must not wait for it.
    code = main()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
