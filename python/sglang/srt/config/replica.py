"""What differs between the replicas of one engine (--dp-size)."""

import msgspec

from sglang.srt.config.server import ServerConfig


def replica_config(config: ServerConfig, rank: int) -> ServerConfig:
    """The configuration of replica `rank`: its own control port, cores where there are enough, share of the memory and
    trace file. What counts requests or tokens (--max-running-requests, --max-total-tokens) holds for each replica.

    With --enable-dp-attention --tp-size counts the ranks of all replicas, of which each has its share.
    """
    if config.dp_size == 1:
        return config
    cores = config.cpu_cores
    share = len(cores) // config.dp_size
    return msgspec.structs.replace(
        config,
        dp_rank=rank,
        tp_size=config.tp_size // config.dp_size if config.enable_dp_attention else config.tp_size,
        disagg_bootstrap_port=config.disagg_bootstrap_port + rank,
        cpu_cores=cores[rank * share : (rank + 1) * share] if share else cores,
        mem_fraction_static=config.mem_fraction_static / config.dp_size,
        trace_file=f"{config.trace_file}.dp{rank}" if config.trace_file else "",
    )
