"""A storm over 3 prefill and 3 decode engines of a tiny model, and what it cost.

python benchmark/chaos.py --minutes 3 --seed 1

Every prompt is a canary: its tokens are known from a fault-free run before the storm. Clients keep 64 requests open
(bursts of 256), a tenth hang up early. Faults, by seed: SIGSTOP, SIGKILL and SIGTERM with restart of random engines,
damaged and replayed control frames, exhausted descriptors; one engine's log goes to a full disk throughout.

Exit code 1 where a promise breaks: a wrong token; a request without an end; 1% of requests failed although their own
decode engine lived; one that failed when a prefill engine died or left; --recovery seconds without an answer after
that; pages, rows, slots, descriptors or memory of a survivor that do not come back; an undisturbed engine whose /health
does not say 200 (all are asked every second). --spare 1 keeps the first engine of each role from being started anew, so
that the report says what an engine holds that lived through all of it.
"""

import argparse
import asyncio
import itertools
import json
import platform
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from chaos_parts import DESCRIPTORS, HealthWatch, Process, Proxy, free_port, make_model

OPEN, BURST, CANCELS = 64, 256, 0.1
PROMPTS, TOKENS = 40, 8
KINDS = ("kill prefill", "term prefill", "stop prefill", "kill decode", "stop decode", "burst", "descriptors")
OWN = "own decode engine down"
DEATHS = frozenset({"kill prefill", "term prefill"})
"""Faults that must cost no request at all."""
MORE_DESCRIPTORS = 16
"""A survivor may hold these beyond what it held at the start: connections of clients that have just hung up."""
MORE_MEMORY = 1.25
"""Allocators keep what a burst needed once: 352-362 MiB after 343-350 in a run of 3 minutes."""
LEFT = ("num_used_tokens", "num_admitted_reqs", "num_queue_reqs", "num_transfer_slots_used", "num_programs_in_flight")


@dataclass
class Fault:
    """One blow and what followed."""

    kind: str
    at: float
    silence_s: float = 0.0
    own: int = 0
    """Requests that ended with their own decode engine."""
    failed: int = 0
    """Requests that failed although it lived."""


@dataclass
class Storm:
    """The cluster, the load and the record."""

    rng: random.Random
    """For clients, who ask when they are answered: what they draw depends on the machine's speed."""
    fates: random.Random
    """For faults: a seed gives the same ones in the same order."""
    prefill: list[Process]
    decode: list[Process]
    proxies: list[Proxy]
    prompts: list[list[int]]
    spare: int = 0
    """So many engines of each role are stopped and starved, but never started anew."""
    right: list[list[int]] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    done_at: list[float] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    starved: set[str] = field(default_factory=set)
    over: bool = False

    async def ask(self, client: httpx.AsyncClient, node: Process, index: int, patience: float) -> str:
        """One request's outcome."""
        body = {
            "input_ids": self.prompts[index],
            "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True},
        }
        sent = time.monotonic()
        try:
            answer = await asyncio.wait_for(client.post(f"{node.url}/generate", json=body), patience)
        except TimeoutError:
            return "cancelled" if patience < 2 else "no answer"
        except httpx.HTTPError as error:
            return self._own_death(node, sent, f"{node.name}: {type(error).__name__}")
        if answer.status_code != 200:
            return self._own_death(node, sent, f"{node.name}: {answer.status_code} {answer.text[:300]}")
        if not self.right:
            return str(answer.json()["output_ids"])
        if answer.json()["output_ids"] != self.right[index]:
            self.complaints.append(f"{node.name}: wrong tokens for prompt {index}")
            return "wrong"
        self.done_at.append(time.monotonic())
        return "right"

    def _own_death(self, node: Process, sent: float, what: str) -> str:
        """A failure is allowed where the request's own decode engine was killed, or had no descriptors left."""
        died = node.down_since < float("inf") or node.back_at > sent or node.process.poll() is not None
        if died or node.name in self.starved:
            return OWN
        self.complaints.append(what)
        return "failed"

    async def client(self, http: httpx.AsyncClient) -> None:
        """Asks one after the other until the storm is over."""
        while not self.over:
            up = [node for node in self.decode if node.up]
            if not up:
                await asyncio.sleep(0.1)
                continue
            patience = self.rng.uniform(0.02, 1.0) if self.rng.random() < CANCELS else 120.0
            outcome = await self.ask(http, self.rng.choice(up), self.rng.randrange(PROMPTS), patience)
            self.outcomes[outcome] += 1
            if outcome not in ("right", "cancelled"):
                await asyncio.sleep(0.05)

    # --- faults ---

    async def blow(self, http: httpx.AsyncClient, longest_stop: float) -> None:
        """One random fault, healed before this returns; what it cost is counted meanwhile."""
        fault = Fault(self.fates.choice(KINDS), time.monotonic())
        self.faults.append(fault)
        own, failed = self.outcomes[OWN], self.outcomes["failed"]
        await self._inflict(fault.kind, http, longest_stop)
        fault.silence_s = self._gap(fault.at)
        fault.own, fault.failed = self.outcomes[OWN] - own, self.outcomes["failed"] - failed

    async def _inflict(self, kind: str, http: httpx.AsyncClient, longest_stop: float) -> None:
        rng = self.fates
        if kind == "burst":
            up = [node for node in self.decode if node.up]
            jobs = [self.ask(http, rng.choice(up), rng.randrange(PROMPTS), 120.0) for _ in range(BURST)]
            self.outcomes.update(await asyncio.gather(*jobs))
        elif kind == "descriptors":
            await self._starve(rng.choice([node for node in self.decode if node.up]))
        else:
            nodes = self.prefill if "prefill" in kind else self.decode
            node = rng.choice(nodes if "stop" in kind else nodes[self.spare :])
            if "stop" in kind:
                node.send(signal.SIGSTOP)
                await asyncio.sleep(rng.uniform(5, longest_stop))
                node.send(signal.SIGCONT)
            else:
                await asyncio.to_thread(node.kill if "kill" in kind else node.leave)
                await asyncio.sleep(rng.uniform(0, 3))
                node.start()
            await asyncio.to_thread(node.wait_ready)

    async def _starve(self, node: Process) -> None:
        """Hold as many connections as the engine has descriptors, for two seconds."""
        self.starved.add(node.name)
        held = []
        for _ in range(DESCRIPTORS + 50):
            link = socket.socket()
            link.setblocking(False)
            link.connect_ex(("127.0.0.1", node.port))
            held.append(link)
        await asyncio.sleep(2)
        for link in held:
            link.close()
        await asyncio.to_thread(node.wait_ready)
        await asyncio.sleep(1)
        self.starved.discard(node.name)

    def _gap(self, since: float) -> float:
        """The longest time without a right answer, from the fault until now: what the whole service felt."""
        times = [since, *[at for at in self.done_at if at >= since], time.monotonic()]
        return max(after - before for before, after in itertools.pairwise(times))

    # --- the end ---

    def leftovers(self) -> dict[str, dict[str, float]]:
        """Gauges that are not back at 0, by engine."""
        found = {}
        for node in (*self.prefill, *self.decode):
            gauges = node.gauges()
            found[node.name] = {name: gauges[name] for name in LEFT if gauges.get(name)}
        return {name: left for name, left in found.items() if left}


def build(folder: Path, seed: int, spare: int) -> Storm:
    """Every process started, none awaited."""
    rng = random.Random(seed)
    model = make_model(folder / "model")
    controls = [free_port() for _ in range(3)]
    proxies = [Proxy(port, seed + i) for i, port in enumerate(controls)]
    prefill = [
        Process(
            f"prefill-{i}", ("--disagg-mode", "prefill", "--disagg-bootstrap-port", str(port)), model, folder / f"p{i}"
        )
        for i, port in enumerate(controls)
    ]
    peers = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
    logs = [folder / "d0", folder / "d1", Path("/dev/full")]
    decode = [
        Process(f"decode-{i}", ("--disagg-mode", "decode", "--disagg-prefill", peers), model, log)
        for i, log in enumerate(logs)
    ]
    prompts = [[rng.randrange(3, 320) for _ in range(rng.randint(40, 400))] for _ in range(PROMPTS)]
    for node in (*prefill, *decode):
        node.start()
    return Storm(rng, random.Random(seed), prefill, decode, proxies, prompts, spare)


async def run(storm: Storm, minutes: float, longest_stop: float) -> None:
    """Reference, storm, calm."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=130, limits=limits) as http:
        references = []
        for index in range(PROMPTS):
            references.append(await storm.ask(http, storm.decode[0], index, 60))
        storm.right = [json.loads(answer) for answer in references]
        clients = [asyncio.create_task(storm.client(http)) for _ in range(OPEN)]
        watch = HealthWatch((*storm.prefill, *storm.decode), storm.starved)
        for proxy in storm.proxies:
            proxy.evil = True
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            await storm.blow(http, longest_stop)
            await asyncio.sleep(storm.fates.uniform(0.5, 2))
        for proxy in storm.proxies:
            proxy.evil = False
        storm.over = True
        await asyncio.gather(*clients)
    storm.outcomes["health: true"], lies = await asyncio.to_thread(watch.close)
    storm.outcomes["health: a lie"] = len(lies)
    storm.complaints += lies


def report(storm: Storm, before: dict[str, tuple[float, int, float]]) -> list[str]:
    """The table, as Markdown."""
    head = "| fault | count | lost with their own decode engine | failed | silence of the service p50 / max, s |"
    lines = [head, "|---|---|---|---|---|"]
    for kind in sorted({fault.kind for fault in storm.faults}):
        faults = [fault for fault in storm.faults if fault.kind == kind]
        times = sorted(fault.silence_s for fault in faults)
        lost = f"{sum(fault.own for fault in faults)} | {sum(fault.failed for fault in faults)}"
        lines.append(f"| {kind} | {len(times)} | {lost} | {times[len(times) // 2]:.1f} / {times[-1]:.1f} |")
    damaged, replayed = (sum(getattr(proxy, name) for proxy in storm.proxies) for name in ("damaged", "replayed"))
    lines += [f"| control frame damaged | {damaged} | | | |", f"| control frame replayed | {replayed} | | | |", ""]
    lines += ["| outcome | requests |", "|---|---|"]
    lines += [f"| {name} | {count} |" for name, count in sorted(storm.outcomes.items())]
    lines += ["", "| survivor | descriptors | resident MiB |", "|---|---|---|"]
    for node, (descriptors, memory), (now, more) in survivors(storm, before):
        lines.append(f"| {node.name} | {descriptors} -> {now} | {memory:.0f} -> {more:.0f} |")
    return lines


Footprint = tuple[int, float]


def survivors(storm: Storm, before: dict[str, tuple[float, int, float]]) -> list[tuple[Process, Footprint, Footprint]]:
    """Engines that were never started anew: what each held before, and holds now."""
    nodes = [node for node in (*storm.prefill, *storm.decode) if node.born == before[node.name][0]]
    return [(node, before[node.name][1:], node.footprint()) for node in nodes]


def broken_promises(storm: Storm, before: dict[str, tuple[float, int, float]], recovery_s: float) -> list[str]:
    """Empty where all hold."""
    found = [
        f"{storm.outcomes[kind]} requests: {kind}"
        for kind in ("wrong", "no answer", "health: a lie")
        if storm.outcomes[kind]
    ]
    total = sum(count for kind, count in storm.outcomes.items() if not kind.startswith("health"))
    if storm.outcomes["failed"] > total / 100:
        found.append(f"{storm.outcomes['failed']} of {total} requests failed although their decode engine lived")
    for fault in storm.faults:
        if fault.kind in DEATHS and (fault.failed or fault.silence_s > recovery_s):
            found.append(f"{fault.kind}: {fault.failed} requests failed, {fault.silence_s:.1f} s of silence")
    for node, (descriptors, memory), (now, more) in survivors(storm, before):
        if now > descriptors + MORE_DESCRIPTORS or more > memory * MORE_MEMORY:
            found.append(f"{node.name}: descriptors {descriptors} -> {now}, MiB {memory:.0f} -> {more:.0f}")
    left = storm.leftovers()
    return found + ([f"not given back: {left}"] if left else [])


def main() -> int:
    """Exit code 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest-stop", type=float, default=30.0, help="seconds of a SIGSTOP at most; 5 at least")
    parser.add_argument(
        "--recovery",
        type=float,
        default=5.0,
        help="seconds without any answer after a prefill engine's death; more where the machine has other work",
    )
    parser.add_argument("--spare", type=int, choices=(0, 1, 2), default=0, help="engines of each role never killed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        storm = build(Path(name), options.seed, options.spare)
        nodes = (*storm.prefill, *storm.decode)
        try:
            for node in nodes:
                node.wait_ready()
            before = {node.name: (node.born, *node.footprint()) for node in nodes}
            asyncio.run(run(storm, options.minutes, options.longest_stop))
            calm = time.monotonic() + 30
            while storm.leftovers() and time.monotonic() < calm:
                time.sleep(0.5)
            broken = broken_promises(storm, before, options.recovery)
            print(
                f"{platform.machine()}, seed {options.seed}, {options.minutes:g} minutes, {time.strftime('%Y-%m-%d')}\n"
            )
            print("\n".join(report(storm, before)))
            for complaint, count in Counter(storm.complaints).most_common(20):
                print(f"{count} x {complaint}", file=sys.stderr)
        finally:
            for node in nodes:
                node.stop()
            for proxy in storm.proxies:
                proxy.close()
    print("\n" + ("BROKEN: " + "; ".join(broken) if broken else "every promise held"))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
