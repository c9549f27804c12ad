"""The only reader of environment variables and devices: everything else is given a `Hardware`."""

import os
from dataclasses import dataclass
from pathlib import Path

KEPT_BYTES = 256 << 20
"""Freed memory up to which glibc returns nothing to the system; more than the tensors of a chunk take."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """What this process may use of the machine."""

    cores: tuple[int, ...]
    """Numbers of the cores that the process may run on."""
    memory_bytes: int
    """Memory that could be allocated now without swapping."""
    no_color: bool
    """Whether the user asked programs not to colour their output (https://no-color.org)."""


def detect() -> Hardware:
    """Reads the affinity mask, the memory counters and the environment of this process."""
    return Hardware(
        cores=tuple(sorted(os.sched_getaffinity(0))),
        memory_bytes=_available_memory(),
        no_color=bool(os.environ.get("NO_COLOR")),
    )


def child_environment(threads: int) -> dict[str, str]:
    """The environment of a scheduler process: this one's, with the thread pools of numeric libraries bounded.

    OpenMP reads its bound once, when it is loaded, so it has to be set before the process starts. Its helpers sleep as
    soon as they have nothing to do, unless the user's OMP_WAIT_POLICY says otherwise: the native kernels have helpers
    of their own, and beside one of OpenMP's that waits awake for 3 ms a decode step of 16 rows took 19.0 ms in place of
    16.3 (SmolLM2-135M, two threads on two cores of an EPYC Genoa).

    glibc keeps what a prompt has used (`MALLOC_*_`). By itself it gives the largest tensors back to the system and asks
    for them again: 9,700 page faults in every prompt of 2,048 tokens, none so (SmolLM2-135M, chunks of 2,048). The most
    memory that is ever used stays the same.
    """
    bounds = {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    keep = {"MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES), "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES)}
    return {"OMP_WAIT_POLICY": "passive", **keep, **os.environ, **bounds}


def _available_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
