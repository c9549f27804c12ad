"""What it costs that a step has several ranks: plans to all of them, all-reduce, all-to-all, mapping their KV pools.

python benchmark/tp_overhead.py [--ranks 2 4] [--rounds 300] [--cpu]      # prints a Markdown table

Ranks are processes that do nothing else; every number is a median, the least in brackets. On a machine that others use
too, wall time measures them: --cpu counts the lead's own processor time instead.
"""

import argparse
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from sglang.srt.core.step import StepPlan, StepRow
from sglang.srt.kv_pool.shareable import SharedMemory, receive_with, send_with
from sglang.srt.model_executor.tp.exchange import Exchange, exchange_bytes
from sglang.srt.model_executor.tp.messages import PlanCodec

SIZES = (8 << 10, 64 << 10, 1 << 20, 4 << 20)
"""Bytes of an all-reduce. In float32: 16 tokens of hidden size 128 or 1,024, 512 tokens of 512 or 2,048."""
MAPPED = (64 << 20, 1 << 30)
Work = Callable[[int], list[float]]
"""From a rank to seconds of each round."""


def in_processes(size: int, work: Work) -> list[float]:
    """Run `work` on ranks 1 .. size-1 as children and on rank 0 here; what rank 0 measured."""
    children = []
    for rank in range(1, size):
        pid = os.fork()
        if pid == 0:
            work(rank)
            os._exit(0)
        children.append(pid)
    found = work(0)
    for pid in children:
        os.waitpid(pid, 0)
    return found


@dataclass
class Stopwatch:
    """Which time counts."""

    clock: Callable[[], float]

    def rounds(self, rounds: int, action: Callable[[], object]) -> list[float]:
        """Seconds of each of `rounds` actions, after 20 for nothing."""
        for _ in range(20):
            action()
        taken = []
        for _ in range(rounds):
            started = self.clock()
            action()
            taken.append(self.clock() - started)
        return taken


def shown(seconds: Sequence[float]) -> str:
    """Microseconds: median (least)."""
    return f"{statistics.median(seconds) * 1e6:,.0f} ({min(seconds) * 1e6:,.0f})"


def shared_all_reduce(watch: Stopwatch, size: int, nbytes: int, rounds: int) -> list[float]:
    memory = SharedMemory.create(exchange_bytes(size), "bench")

    def work(rank: int) -> list[float]:
        collectives, part = Exchange(memory, rank, size).collectives, torch.ones(nbytes // 4)
        return watch.rounds(rounds, lambda: collectives.all_reduce(part))

    return in_processes(size, work)


def gloo_all_reduce(watch: Stopwatch, size: int, nbytes: int, rounds: int) -> list[float]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def work(rank: int) -> list[float]:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
        part = torch.ones(nbytes // 4)
        found = watch.rounds(rounds, lambda: dist.all_reduce(part))
        dist.destroy_process_group()
        return found

    return in_processes(size, work)


def plan_of(rows: int) -> StepPlan:
    """A decode step in which each sixteenth row gets a page."""
    made = (
        StepRow(slot=slot, start=500 + slot, length=1, tokens=(), new_pages=(slot,) if slot % 16 == 0 else ())
        for slot in range(rows)
    )
    return StepPlan(step_id=1, rows=tuple(made))


def broadcast(watch: Stopwatch, size: int, rows: int, rounds: int) -> tuple[list[float], list[float]]:
    """(plan encoded, published, received and decoded by every rank, and one barrier; the barrier alone)."""
    memory, codec, plan = SharedMemory.create(exchange_bytes(size), "bench"), PlanCodec(), plan_of(rows)
    alone: list[float] = []

    def work(rank: int) -> list[float]:
        exchange = Exchange(memory, rank, size)

        def step() -> None:
            if rank == 0:
                assert exchange.publish(codec.encode(plan))
            else:
                codec.decode(exchange.next_plan() or b"")
            exchange.collectives.barrier()

        found = watch.rounds(rounds, step)
        alone.extend(watch.rounds(rounds, exchange.collectives.barrier))
        return found

    return in_processes(size, work), alone


def token_exchange(watch: Stopwatch, size: int, tokens: int, rounds: int) -> list[float]:
    """What experts on other ranks cost a sparse layer: counts, `tokens` tokens of 8 KiB to each rank, and answers."""
    memory, counts = SharedMemory.create(exchange_bytes(size), "bench"), [tokens] * (size * size)

    def work(rank: int) -> list[float]:
        collectives, rows = Exchange(memory, rank, size).collectives, torch.ones(tokens * size, 2048)
        mine = torch.full((1, size), tokens)

        def layer() -> None:
            collectives.all_gather_last(mine)
            collectives.all_to_all(collectives.all_to_all(rows, counts), counts)

        return watch.rounds(rounds, layer)

    return in_processes(size, work)


def mapping(watch: Stopwatch, nbytes: int, rounds: int) -> list[float]:
    """Seconds to pass a descriptor over a socket and map it."""
    memory = SharedMemory.create(nbytes, "bench")
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def once() -> None:
        send_with(here, b"pool", [memory])
        SharedMemory(receive_with(there, 64)[1][0], nbytes).close()

    return watch.rounds(rounds, once)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--cpu", action="store_true", help="processor time of the lead in place of wall time")
    args = parser.parse_args()
    watch = Stopwatch(time.process_time if args.cpu else time.perf_counter)
    torch.set_num_threads(1)
    whose = "processor time of the lead" if args.cpu else "wall time"
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}; {whose} in us, median (least)\n")
    print("| | " + " | ".join(f"TP {size}" for size in args.ranks) + " |\n|---|" + "---|" * len(args.ranks))
    for rows in (1, 16, 256):
        both = [broadcast(watch, size, rows, args.rounds) for size in args.ranks]
        print(f"| plan of {rows} rows to every rank, and a barrier | {' | '.join(shown(b[0]) for b in both)} |")
    print(f"| barrier | {' | '.join(shown(b[1]) for b in both)} |")
    for nbytes in SIZES:
        for name, measure in (("shared memory", shared_all_reduce), ("gloo", gloo_all_reduce)):
            cells = [
                shown(measure(watch, size, nbytes, args.rounds if nbytes < 1 << 20 else 30)) for size in args.ranks
            ]
            print(f"| all-reduce of {nbytes >> 10} KiB, {name} | {' | '.join(cells)} |", flush=True)
    for tokens in (0, 1, 16):
        cells = [shown(token_exchange(watch, size, tokens, args.rounds)) for size in args.ranks]
        print(f"| {tokens} tokens of 8 KiB from each rank to each, and back | {' | '.join(cells)} |", flush=True)
    for nbytes in MAPPED:
        cell = shown(mapping(watch, nbytes, 100))
        print(f"| pass and map a pool of {nbytes >> 20} MiB | {' | '.join(cell for _ in args.ranks)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
