"""A whole cluster in one thread: real schedulers, roles and loopback messengers; a worker whose KV is a hash chain.

The KV of a position is a hash of its layer, the KV before it and its token, and a sampled token is a hash of all KV
bytes of the row. So a page that is wrong, stale or overwritten at any layer changes the tokens, and `expected_tokens`
says what they must be.
"""

import hashlib
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from sglang.srt.core.clock import FakeClock
from sglang.srt.core.layout import KVLayout, ShardLayout
from sglang.srt.core.ports import KVMessenger
from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.step import SampledToken, StepPlan, StepResult
from sglang.srt.core.trace import NullTracer
from sglang.srt.disaggregation.messenger.loopback import Faults, LoopbackMessenger, LoopbackNetwork
from sglang.srt.disaggregation.roles.decode import DecodeRole
from sglang.srt.disaggregation.roles.prefill import PrefillRole
from sglang.srt.disaggregation.roles.settings import RoleSettings
from sglang.srt.ipc.local_channel import LocalChannel
from sglang.srt.managers.limits import Limits
from sglang.srt.managers.role import Role, UnifiedRole
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.cache_manager import CacheManager
from sglang.srt.messages.frontend import Generate, Outputs, Refused, ToFrontend, ToScheduler

LAYERS = 3
TOKEN_BYTES = 8
VOCABULARY = 1000
CONTEXT = 400


def _kv(layer: int, before: bytes, token: int) -> bytes:
    return hashlib.blake2b(before + token.to_bytes(4, "little") + bytes((layer,)), digest_size=TOKEN_BYTES).digest()


def _token(kv: list[bytes]) -> int:
    return int.from_bytes(hashlib.blake2b(b"".join(kv), digest_size=4).digest(), "little") % VOCABULARY


def expected_tokens(prompt: list[int], count: int) -> list[int]:
    """What an engine that never loses a byte answers."""
    tokens = list(prompt)
    chains: list[list[bytes]] = [[] for _ in range(LAYERS)]
    for position in range(len(prompt) + count - 1):
        for layer, chain in enumerate(chains):
            chain.append(_kv(layer, chain[-1] if chain else bytes(TOKEN_BYTES), tokens[position]))
        if position >= len(prompt) - 1:
            tokens.append(_token([kv for chain in chains for kv in chain]))
    return tokens[len(prompt) :]


class SimMessenger(KVMessenger, Protocol):
    """A messenger whose layer counter the simulated worker can bump."""

    def bump(self, layers: int = 1) -> None: ...


class SimWorker:
    """A worker that advances one layer of one step at a time, when told to."""

    def __init__(self, memory: bytearray, layout: ShardLayout, messenger: SimMessenger | None) -> None:
        self.memory = memory
        self.layout = layout
        self.messenger = messenger
        self.tables: dict[int, list[int]] = {}
        self.last: dict[int, int] = {}
        self.plans: deque[StepPlan] = deque()
        self.layer = 0
        self.inputs: list[list[int]] = []
        self.results: list[StepResult] = []
        self.clock_ns = 1

    def submit(self, plan: StepPlan) -> None:
        assert len(self.plans) < 2, "more than two steps in flight"
        self.plans.append(plan)

    def poll(self) -> list[StepResult]:
        results, self.results = self.results, []
        return results

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        pass

    def _at(self, layer: int, slot: int, position: int) -> slice:
        page_size = self.layout.kv.page_size
        page = self.tables[slot][position // page_size]
        start = self.layout.layer_offset(0, layer) + page * self.layout.page_bytes(0)
        start += position % page_size * TOKEN_BYTES
        return slice(start, start + TOKEN_BYTES)

    def advance(self) -> bool:
        """Compute one layer of the oldest step; False where there is none."""
        if not self.plans:
            return False
        plan = self.plans[0]
        if self.layer == 0:
            self._begin(plan)
        for row, tokens in zip(plan.rows, self.inputs, strict=True):
            for i, token in enumerate(tokens):
                position = row.start + i
                before = self.memory[self._at(self.layer, row.slot, position - 1)] if position else bytes(TOKEN_BYTES)
                self.memory[self._at(self.layer, row.slot, position)] = _kv(self.layer, bytes(before), token)
        if self.messenger is not None:
            self.messenger.bump()
        self.layer += 1
        if self.layer == LAYERS:
            self._end(plan)
        return True

    def _begin(self, plan: StepPlan) -> None:
        for slot in plan.closed:
            del self.tables[slot]
        for opened in plan.opened:
            assert opened.slot not in self.tables, "opened twice"
            self.tables[opened.slot] = []
        self.inputs = []
        for row in plan.rows:
            self.tables[row.slot] += row.new_pages
            assert len(self.tables[row.slot]) * self.layout.kv.page_size >= row.start + row.length
            self.inputs.append(list(row.tokens) or [self.last[row.slot]])
            assert len(self.inputs[-1]) == row.length

    def _end(self, plan: StepPlan) -> None:
        sampled = []
        for row in plan.rows:
            if row.sample:
                kv = [
                    bytes(self.memory[self._at(layer, row.slot, position)])
                    for layer in range(LAYERS)
                    for position in range(row.start + row.length)
                ]
                self.last[row.slot] = _token(kv)
                sampled.append(SampledToken(slot=row.slot, token=self.last[row.slot]))
        self.plans.popleft()
        self.layer = 0
        self.clock_ns += 1000
        ended = self.clock_ns
        self.results.append(
            StepResult(
                step_id=plan.step_id,
                sampled=tuple(sampled),
                started_ns=ended - 500,
                forward_ended_ns=ended,
                ended_ns=ended,
            )
        )


class NoWaiter:
    """The simulation never sleeps."""

    def wait(self, seconds: float) -> None:
        pass


class MemoryLink:
    """One end of the control plane: named mailboxes that can be cut."""

    def __init__(
        self, name: str, mail: dict[tuple[str, str], deque[object]], cut: set[str], late: Callable[[], bool]
    ) -> None:
        """`late`: whether the next message is still on its way."""
        self.late = late
        self.hung: list[str] = []
        self.name = name
        self.mail = mail
        self.cut = cut

    def counters(self) -> dict[str, float]:
        return {}

    def send(self, peer: str, message: object) -> bool:
        if self.name in self.cut or peer in self.cut:
            return False
        self.mail.setdefault((peer, self.name), deque()).append(message)
        return True

    def poll(self) -> list[tuple[str, object]]:
        if self.name in self.cut:
            return []
        found = []
        for (to, sender), box in self.mail.items():
            while to == self.name and box and not self.late():
                found.append((sender, box.popleft()))
        return found

    def hung_up(self) -> list[str]:
        hung, self.hung = self.hung, []
        return hung

    def close(self) -> None:
        self.cut.add(self.name)


@dataclass
class Engine:
    """One simulated engine."""

    name: str
    scheduler: Scheduler
    worker: SimWorker
    cache: CacheManager
    to: deque[ToScheduler]
    back: deque[ToFrontend]
    paused: bool = False


@dataclass
class Answer:
    """What a client of the simulation has received."""

    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    refused: Refused | None = None
    cached: int = 0

    @property
    def over(self) -> bool:
        return self.finish is not None or self.refused is not None


class Sim:
    """Engines, a network, a clock and clients, all driven by one seed."""

    def __init__(
        self,
        seed: int,
        *,
        page_size: int = 4,
        faults: Faults | None = None,
        settings: RoleSettings | None = None,
        mail_delay: float = 0.0,
    ) -> None:
        """`mail_delay`: share of looks into a mailbox that find its next message still on its way."""
        self.mail_delay = mail_delay
        self.random = random.Random(seed)
        self.clock = FakeClock()
        self.network = LoopbackNetwork(seed, faults)
        self.mail: dict[tuple[str, str], deque[object]] = {}
        self.cut: set[str] = set()
        self.diallers: dict[str, tuple[MemoryLink, tuple[str, ...]]] = {}
        """Decode engines' links and whom they dial."""
        self.engines: dict[str, Engine] = {}
        self.answers: dict[str, Answer] = {}
        self.settings = settings or RoleSettings(local_tokens=0)
        self.page_size = page_size

    def layout(self, pages: int) -> ShardLayout:
        kv = KVLayout(
            kind="mla", layers=LAYERS, page_size=self.page_size, kv_heads=1, head_dim=2, dtype="float32", model="sim"
        )
        return ShardLayout(kv=kv, tp_size=1, num_pages=pages)

    def messenger(self, name: str, memory: bytearray, layout: ShardLayout) -> SimMessenger:
        """What carries an engine's KV; a subclass may bring a real one."""
        return LoopbackMessenger(self.network, name, memory, layout)

    def add(self, name: str, mode: str, *, pages: int = 64, peers: tuple[str, ...] = (), **limits: object) -> Engine:
        layout = self.layout(pages)
        memory = bytearray(self.random.randbytes(layout.region_bytes(0)))
        messenger = None if mode == "null" else self.messenger(name, memory, layout)
        worker = SimWorker(memory, layout, messenger)
        role = self._role(name, mode, messenger, layout, peers)
        cache = CacheManager(num_pages=pages, page_size=self.page_size)
        to: deque[ToScheduler] = deque()
        back: deque[ToFrontend] = deque()
        settings = {"max_running": 8, "max_queued": 1000, "chunk": 16, "max_prefill": 4096, **limits}
        scheduler = Scheduler(
            limits=Limits(context=CONTEXT, layers=LAYERS, check_invariants=True, **settings),
            cache=cache,
            worker=worker,
            role=role,
            channel=LocalChannel(to, back),
            waiter=NoWaiter(),
            clock=self.clock,
            tracer=NullTracer(),
        )
        engine = self.engines[name] = Engine(name, scheduler, worker, cache, to, back)
        return engine

    def _role(
        self, name: str, mode: str, messenger: SimMessenger | None, layout: ShardLayout, peers: tuple[str, ...]
    ) -> Role:
        if messenger is None:
            return UnifiedRole()
        if mode == "decode":
            link = MemoryLink(name, self.mail, self.cut, self._late)
            self.diallers[name] = link, peers
            return DecodeRole(
                messenger=messenger,
                link=link,
                layout=layout,
                peers=peers,
                incarnation=self.random.getrandbits(60),
                settings=self.settings,
                tracer=NullTracer(),
            )
        return PrefillRole(
            messenger=messenger,
            link=MemoryLink(name, self.mail, self.cut, self._late),
            layout=layout,
            incarnation=self.random.getrandbits(60),
            context=CONTEXT,
            vocabulary=VOCABULARY,
            settings=self.settings,
            tracer=NullTracer(),
        )

    def _late(self) -> bool:
        return self.mail_delay > 0 and self.random.random() < self.mail_delay

    def ask(self, engine: str, rid: str, prompt: list[int], count: int, group: str = "") -> Answer:
        sampling = SamplingParams(max_new_tokens=count)
        self.engines[engine].to.append(Generate(rid=rid, token_ids=tuple(prompt), sampling=sampling, group=group))
        answer = self.answers[rid] = Answer()
        return answer

    def kill(self, name: str) -> None:
        """SIGKILL: it neither sends nor receives. Those who dialled it learn so, or have only its silence."""
        self.cut.add(name)
        self.network.dead.add(name)
        del self.engines[name]
        if self.random.random() < 0.5:
            self.hang_up(name)

    def hang_up(self, name: str) -> None:
        """Every decode engine that dials `name` learns that its connection ended and that it takes no other."""
        for link, peers in self.diallers.values():
            link.hung += [name] * (name in peers)

    def turn(self) -> None:
        """One random event somewhere."""
        engine = self.random.choice(list(self.engines.values()))
        if not engine.paused:
            for _ in range(self.random.randint(0, 4)):
                engine.worker.advance()
            engine.scheduler.turn()
            self._collect(engine)
            if engine.scheduler.over:
                self._exit(engine)
        self.network.pump(self.random.randint(0, 12))
        self.clock.advance(self.random.random() * 0.002)

    def _exit(self, engine: Engine) -> None:
        """As its process would: what is on the wire to it is lost."""
        engine.scheduler.close()
        self.network.dead.add(engine.name)
        del self.engines[engine.name]

    def restart(self, name: str, **more: object) -> Engine:
        """A new process under the name of one that has ended."""
        self.cut.discard(name)
        self.network.dead.discard(name)
        for mailbox in [key for key in self.mail if name in key]:
            del self.mail[mailbox]
        return self.add(name, **more)  # type: ignore[arg-type]

    def _collect(self, engine: Engine) -> None:
        while engine.back:
            message = engine.back.popleft()
            if isinstance(message, Refused):
                self.answers[message.rid].refused = message
            elif isinstance(message, Outputs):
                for item in message.items:
                    answer = self.answers[item.rid]
                    assert not answer.over, f"{item.rid} was answered after its end"
                    answer.tokens += item.token_ids
                    answer.finish = item.finish_reason
                    answer.cached = item.cached_tokens

    def run(self, turns: int = 20_000) -> None:
        """Until every client has its end and every engine is idle."""
        for _ in range(turns):
            self.turn()
            if all(answer.over for answer in self.answers.values()) and self.quiet():
                return
        open_ = [rid for rid, answer in self.answers.items() if not answer.over]
        states = {n: [(r.rid, r.state.name, r.pending) for r in e.scheduler.admitted] for n, e in self.engines.items()}
        raise AssertionError(f"not over after {turns} turns: {open_}; {states}")

    def quiet(self) -> bool:
        return all(engine.scheduler.idle for engine in self.engines.values() if not engine.paused)

    def check_empty(self) -> None:
        """Every page, slot and row of every engine is back."""
        for engine in self.engines.values():
            engine.cache.check()
            assert engine.cache.held == 0, f"{engine.name} holds {engine.cache.held} pages"
            gauges = engine.scheduler.role.gauges()
            for left in ("num_transfer_slots_used", "num_prefill_inflight_queue_reqs", "num_programs_in_flight"):
                assert not gauges.get(left), gauges
