"""What the loop of a disaggregated engine costs: a turn with 64 open transfers stays under 5 ms, frames included.

The messenger and the peer are stand-ins that cost nothing; every frame is encoded and decoded as on the wire.
"""

from collections import deque
from collections.abc import Sequence

from sglang.srt.core.clock import FakeClock
from sglang.srt.core.layout import KVLayout, ShardLayout
from sglang.srt.core.ports import LayerWrites, MessengerEvent, RemoteRegion, SlotFilled, WritesDone
from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.trace import NullTracer
from sglang.srt.disaggregation.roles.decode import DecodeRole
from sglang.srt.disaggregation.roles.prefill import PrefillRole
from sglang.srt.disaggregation.roles.settings import RoleSettings
from sglang.srt.ipc.local_channel import local_pair
from sglang.srt.ipc.zmq_link import control_codec
from sglang.srt.managers.limits import Limits
from sglang.srt.managers.role import Role
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.cache_manager import CacheManager
from sglang.srt.messages.frontend import Generate, ToFrontend, ToScheduler
from sglang.srt.messages.wire import (
    WIRE_VERSION,
    AskAdmitted,
    AskQueued,
    Heartbeat,
    Hello,
    HelloReply,
    PrefillAsk,
    RegionDescriptor,
    WireMessage,
)
from support.sim import NoWaiter
from support.turn_time import BOUND_S, InstantWorker, cpu_of_turns

OPEN, TOKENS, VOCABULARY = 64, 1000, 1000
KV = KVLayout(kind="gqa", layers=30, page_size=16, kv_heads=3, head_dim=64, dtype="bfloat16", model="m")
LAYOUT = ShardLayout(kv=KV, tp_size=1, num_pages=16_000)
SETTINGS = RoleSettings(local_tokens=0, heartbeat_misses=1_000_000, ask_timeout_s=1e6, transfer_floor_s=1e6)


class SilentMessenger:
    """Programs end at once; slots fill when the test says so."""

    provider, address = "silent", b""

    def __init__(self) -> None:
        self.events: list[MessengerEvent] = []
        self.armed = 0

    def grant(self, peer: str) -> tuple[RemoteRegion, ...]:
        return (RemoteRegion(rank=0, base=0, key=1, nbytes=LAYOUT.region_bytes(0)),)

    def locate(self, peer: str, address: bytes) -> None: ...

    def revoke(self, peer: str) -> None: ...

    def connect(self, peer: str, address: bytes, regions: Sequence[RemoteRegion], destination_pages: int) -> None: ...

    def disconnect(self, peer: str) -> None: ...

    def expect(self, slot: int, weight: int) -> None: ...

    def forget(self, slot: int) -> int:
        return 0

    def arm(self, writes: LayerWrites) -> int:
        self.armed += 1
        layers = (0,) * KV.layers
        self.events.append(WritesDone(handle=self.armed, seen_ns=layers, posted_ns=layers, layer_bytes=layers))
        return self.armed

    def cancel(self, handle: int) -> None: ...

    def poll(self) -> list[MessengerEvent]:
        events, self.events = self.events, []
        return events

    def fileno(self) -> int:
        return -1

    def counters(self) -> dict[str, float]:
        return {}

    def close(self) -> None: ...


class Wire:
    """One peer, whose frames wait in `coming` and who answers through `answer`."""

    def __init__(self) -> None:
        self._codec = control_codec(WireMessage)
        self.coming: deque[bytes] = deque()
        self.slots: deque[int] = deque()

    def say(self, message: WireMessage) -> None:
        self.coming.append(self._codec.encode(message))

    def send(self, peer: str, message: WireMessage) -> bool:
        match self._codec.decode(self._codec.encode(message)):
            case Hello(incarnation=incarnation, greeting=greeting):
                self.say(
                    HelloReply(
                        version=WIRE_VERSION,
                        incarnation=7,
                        peer_incarnation=incarnation,
                        greeting=greeting,
                        refusal="",
                        layout=LAYOUT,
                        provider="silent",
                        fabric_address=b"",
                    )
                )
            case PrefillAsk(transfer=transfer, generation=generation, slot=slot):
                self.say(AskQueued(transfer=transfer, generation=generation, estimate_ms=1))
                self.say(AskAdmitted(transfer=transfer, generation=generation, cached_tokens=0))
                self.slots.append(slot)
            case _:
                pass
        return True

    def poll(self) -> list[tuple[str, WireMessage]]:
        frames, self.coming = self.coming, deque()
        return [("peer", self._codec.decode(frame)) for frame in frames]

    def hung_up(self) -> list[str]:
        return []

    def counters(self) -> dict[str, float]:
        return {}

    def close(self) -> None: ...


def scheduler_of(role: Role) -> tuple[Scheduler, object]:
    front, back = local_pair(ToScheduler, ToFrontend)  # type: ignore[type-abstract]
    limits = Limits(max_running=OPEN, max_queued=1000, chunk=512, max_prefill=1 << 20, context=8192, layers=KV.layers)
    scheduler = Scheduler(
        limits=limits,
        cache=CacheManager(num_pages=LAYOUT.num_pages, page_size=16, reuse=False),
        worker=InstantWorker(),  # type: ignore[arg-type]
        role=role,
        channel=back,
        waiter=NoWaiter(),
        clock=FakeClock(),
        tracer=NullTracer(),
    )
    return scheduler, front


def check(times: list[float]) -> None:
    assert times[len(times) // 2] < BOUND_S / 2, f"median {1000 * times[len(times) // 2]:.2f} ms"
    assert times[len(times) * 19 // 20] < BOUND_S, f"p95 {1000 * times[len(times) * 19 // 20]:.2f} ms"


def test_a_decode_engine_with_64_transfers_one_of_which_ends_and_one_begins_in_every_turn() -> None:
    wire, messenger = Wire(), SilentMessenger()
    role = DecodeRole(
        messenger=messenger,
        link=wire,
        layout=LAYOUT,
        peers=("peer",),
        incarnation=1,
        settings=SETTINGS,
        tracer=NullTracer(),
    )
    scheduler, front = scheduler_of(role)
    asked = 0

    def turn() -> None:
        nonlocal asked
        prompt = tuple((asked + i) % VOCABULARY for i in range(TOKENS))
        front.send(Generate(rid=str(asked), token_ids=prompt, sampling=SamplingParams(max_new_tokens=1)))  # type: ignore[attr-defined]
        asked += 1
        if len(wire.slots) > OPEN // 2:
            messenger.events.append(SlotFilled(slot=wire.slots.popleft(), at_ns=1))
        wire.say(Heartbeat(incarnation=7, sequence=asked))
        whole()

    whole = scheduler.turn
    for _ in range(2 * OPEN):
        turn()
    assert role.gauges()["num_decode_transfer_queue_reqs"] >= OPEN // 2
    before = role.counters()["num_transfers_total"]
    scheduler.turn = turn  # type: ignore[method-assign]
    check(cpu_of_turns(scheduler, 200))
    assert role.counters()["num_transfers_total"] - before > 150, "transfers end meanwhile"


def test_a_prefill_engine_with_64_asks_computes_a_chunk_and_takes_an_ask_in_every_turn() -> None:
    wire, messenger = Wire(), SilentMessenger()
    role = PrefillRole(
        messenger=messenger,
        link=wire,
        layout=LAYOUT,
        incarnation=7,
        context=8192,
        vocabulary=VOCABULARY,
        settings=SETTINGS,
        tracer=NullTracer(),
    )
    scheduler, _ = scheduler_of(role)
    region = RegionDescriptor(rank=0, base=0, key=1, nbytes=LAYOUT.region_bytes(0))
    wire.say(
        Hello(
            version=WIRE_VERSION,
            incarnation=1,
            greeting=1,
            layout=LAYOUT,
            provider="silent",
            fabric_address=b"",
            regions=(region,),
        )
    )
    pages = -(-TOKENS // 16)
    asked = 0

    def ask() -> None:
        nonlocal asked
        asked += 1
        wire.say(
            PrefillAsk(
                incarnation=7,
                greeting=1,
                transfer=asked,
                generation=0,
                slot=asked % 4096,
                token_ids=tuple((asked + i) % VOCABULARY for i in range(TOKENS)),
                first_page=0,
                pages=tuple(range(pages)),
                replica_key=asked,
                deadline_ms=1000,
            )
        )

    def turn() -> None:
        while role.gauges()["num_prefill_inflight_queue_reqs"] + len(wire.coming) < OPEN:
            ask()
        whole()

    whole = scheduler.turn
    for _ in range(2 * OPEN):
        turn()
    before = role.counters()["num_transfers_total"]
    scheduler.turn = turn  # type: ignore[method-assign]
    check(cpu_of_turns(scheduler, 200))
    assert role.counters()["num_transfers_total"] - before > 50, "transfers end meanwhile"
