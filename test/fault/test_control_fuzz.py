"""Control frames cut, flipped, spliced, repeated: decoding and obeying them never raises and leaks nothing.

The frames of a real conversation in the simulated cluster are recorded, mutated and played into both roles while they
serve; afterwards every page, slot and program is back and the tokens of requests that ended well are right.
"""

import random
from collections import deque

import pytest

from sglang.srt.disaggregation.roles.settings import RoleSettings
from sglang.srt.errors import WireError
from sglang.srt.ipc.zmq_link import CONTROL_LIMIT, control_codec
from sglang.srt.messages.codec import Codec
from sglang.srt.messages.wire import Cancel, ToDecode, ToPrefill
from support.sim import VOCABULARY, Sim, expected_tokens

# Without the checksum of the real links, which would catch nearly every mutation before it reaches a role.
TO_PREFILL: Codec[ToPrefill] = Codec(ToPrefill, limit=CONTROL_LIMIT)
TO_DECODE: Codec[ToDecode] = Codec(ToDecode, limit=CONTROL_LIMIT)


class Recorder(deque):  # type: ignore[type-arg]
    """A mailbox that keeps what passes through it."""

    def __init__(self, codec: Codec, tape: list[bytes]) -> None:  # type: ignore[type-arg]
        super().__init__()
        self._codec = codec
        self._tape = tape

    def append(self, message: object) -> None:
        if len(self._tape) < 400:
            self._tape.append(self._codec.encode(message))
        super().append(message)


def mutate(rng: random.Random, tape: list[bytes]) -> bytes:
    """One of: a copy, flipped bits, a cut, a splice, noise, a changed byte that is often a number."""
    frame = bytearray(rng.choice(tape))
    match rng.randrange(6):
        case 1:
            for _ in range(rng.randint(1, 4)):
                frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
        case 2:
            del frame[rng.randrange(len(frame)) :]
        case 3:
            other = rng.choice(tape)
            frame[rng.randrange(len(frame)) :] = other[rng.randrange(len(other)) :]
        case 4:
            frame[rng.randrange(len(frame)) : rng.randrange(len(frame))] = rng.randbytes(rng.randint(0, 9))
        case 5:
            frame[rng.randrange(len(frame))] = rng.choice((0, 1, 0x7F, 0x80, 0xC0, 0xC3, 0xCF, 0xD3, 0xFF))
    return bytes(frame)


def play(count: int, seed: int) -> tuple[int, int]:
    """(frames that were malformed, frames that were obeyed) of `count`."""
    rng = random.Random(seed)
    sim = Sim(seed, settings=RoleSettings(local_tokens=0, fallback_local=True, transfer_floor_s=2.0))
    sim.add("p0", "prefill", pages=96)
    sim.add("d0", "decode", pages=96, peers=("p0",))
    tapes: dict[str, list[bytes]] = {"p0": [], "d0": []}
    sim.mail["p0", "d0"] = Recorder(TO_PREFILL, tapes["p0"])
    sim.mail["d0", "p0"] = Recorder(TO_DECODE, tapes["d0"])
    malformed = obeyed = asked = 0
    loads: list[tuple[list[int], int]] = []
    while malformed + obeyed < count:
        if len(sim.engines["d0"].scheduler.requests) < 4:
            prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(2, 40))]
            sim.ask("d0", str(asked), prompt, 3)
            loads.append((prompt, 3))
            asked += 1
        for _ in range(5):
            sim.turn()
        for to, sender, codec in (("p0", "d0", TO_PREFILL), ("d0", "p0", TO_DECODE)):
            for _ in range(10 if tapes[to] else 0):
                try:
                    message = codec.decode(mutate(rng, tapes[to]))
                except WireError:
                    malformed += 1
                else:
                    obeyed += 1
                    deque.append(sim.mail[to, sender], message)
    for _ in range(200):
        sim.turn()
        sim.clock.advance(0.05)
    sim.run(100_000)
    sim.check_empty()
    check(sim, loads)
    return malformed, obeyed


def check(sim: Sim, loads: list[tuple[list[int], int]]) -> None:
    """Frames that decode may say anything, even that a transfer is drained: only the pages' owner could tell a forgery.

    So tokens are not compared here (replays and corruption are, below); every request ended, though.
    """
    assert all(sim.answers[str(i)].over for i in range(len(loads)))


def test_mutated_frames_crash_and_leak_nothing() -> None:
    malformed, obeyed = play(20_000, 1)
    assert malformed > 4000 and obeyed > 2000


def test_a_damaged_frame_is_never_obeyed() -> None:
    codec: Codec[ToPrefill] = control_codec(ToPrefill)
    frame = codec.encode(Cancel(incarnation=1, greeting=2, transfer=3, generation=4))
    for index in range(1, len(frame)):
        for bit in range(8):
            damaged = bytearray(frame)
            damaged[index] ^= 1 << bit
            with pytest.raises(WireError):
                codec.decode(bytes(damaged))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(10))
def test_a_million_mutated_frames(seed: int) -> None:
    play(100_000, 100 + seed)


@pytest.mark.parametrize("seed", range(8))
def test_replayed_lost_and_reordered_frames_cost_no_token(seed: int) -> None:
    """An unreliable channel of honest frames: whatever it does, every answer is right."""
    rng = random.Random(seed)
    sim = Sim(seed, settings=RoleSettings(local_tokens=0, fallback_local=True, transfer_floor_s=2.0))
    for name in ("p0", "p1"):
        sim.add(name, "prefill", pages=64)
    sim.add("d0", "decode", pages=40, peers=("p0", "p1"))
    kept: dict[tuple[str, str], list[object]] = {}
    loads = []
    for i in range(40):
        loads.append(([rng.randrange(VOCABULARY) for _ in range(rng.randint(5, 50))], 4))
        sim.ask("d0", str(i), *loads[-1])
    for _ in range(6000):
        sim.turn()
        for way, box in sim.mail.items():
            past = kept.setdefault(way, [])
            past.extend(message for message in box if rng.random() < 0.1)
            if box and rng.random() < 0.02:
                box.pop()
            if len(box) > 1 and rng.random() < 0.3:
                shuffled = rng.sample(list(box), len(box))
                box.clear()
                box.extend(shuffled)
            if past and rng.random() < 0.01:
                box.append(rng.choice(past))
    sim.run(150_000)
    for i, (prompt, count) in enumerate(loads):
        assert sim.answers[str(i)].tokens == expected_tokens(prompt, count), i
    sim.check_empty()
