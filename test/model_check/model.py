"""Two engines, one page and a channel that may lose, repeat and reorder: every interleaving, over the real tables.

The moves of a transfer are `DESTINATION_TABLE` and `SOURCE_TABLE`; what a prefill engine makes of hellos and asks are
`Lives.judge` and `judge_ask`. What is modelled beside them is what a role does at a move: send, free, fence. One page
serves all transfers in turn, so any write that lands outside its own transfer's life is a violation.

A prefill engine that leaves waits for farewells without a limit here; in real engines it does so for a bounded time.

A state is a value; `successors` gives every next one. Faults spend a budget; time is not modelled: a deadline may
always strike, which covers every pause.
"""

from collections.abc import Iterator
from dataclasses import replace

from model_check.reduce import reduced
from model_check.world import LIFE, Budget, Message, Source, Violation, World
from sglang.srt.disaggregation.handoff.replay import (
    Fate,
    Greeting,
    Lives,
    judge_ask,
)
from sglang.srt.disaggregation.handoff.states import (
    DESTINATION_ENDS,
    DESTINATION_TABLE,
    SOURCE_ENDS,
    SOURCE_TABLE,
    DestinationEvent,
    DestinationState,
    SourceEvent,
    SourceState,
)

__all__ = ["RULES", "Budget", "Model", "Violation", "World"]

RULES = frozenset(
    {
        "free only when nothing can land",
        "fence before reuse",
        "drained only when quiet",
        "an ask belongs to its grant",
        "an ask is obeyed once",
        "a cancel takes the number of its ask",
        "numbers differ between lives",
        "grants differ between lives",
        "drained speaks for one life only",
        "nothing is asked of an engine that leaves",
        "farewell is said when nothing is open",
        "a farewell belongs to its grant",
        "an engine leaves after the farewell",
    }
)
"""Each can be taken away, to see the check fail without it."""


class Model:
    """The rules of the game; `without` takes one away."""

    def __init__(self, *, transfers: int = 2, weight: int = 2, without: str = "") -> None:
        assert not without or without in RULES
        self.transfers = transfers
        self.weight = weight
        self.without = without

    def has(self, rule: str) -> bool:
        return rule != self.without

    # --- every step: (is it a fault, the next world) ---

    def successors(self, w: World) -> Iterator[tuple[bool, World]]:
        for fault, world in self.steps(w):
            yield fault, self.reduced(world)

    def reduced(self, w: World) -> World:
        """Without what makes no difference any more. Where a rule is missing, numbers may come again: nothing is."""
        return w if self.without else reduced(w)

    def steps(self, w: World) -> Iterator[tuple[bool, World]]:
        for world in (*self._decode_steps(w), *self._prefill_steps(w)):
            yield False, world
        for index, message in enumerate(w.messages):
            rest = replace(w, messages=w.messages[:index] + w.messages[index + 1 :])
            yield False, self._deliver(rest, message)
            if w.budget.loss:
                yield True, replace(rest, budget=replace(w.budget, loss=w.budget.loss - 1))
            if w.budget.repeat:
                spent = replace(w, budget=replace(w.budget, repeat=w.budget.repeat - 1))
                yield True, self._deliver(spent, message)
        for world in self._faults(w):
            yield True, world

    def _faults(self, w: World) -> Iterator[World]:
        budget = w.budget
        if budget.suspicion:
            spent = replace(w, budget=replace(budget, suspicion=budget.suspicion - 1))
            if w.peer is not None:
                yield self._fence(spent)
            if w.guest:
                yield self._drop_guest(spent)
        if budget.crash_p:
            spent = replace(w, budget=replace(budget, crash_p=budget.crash_p - 1))
            ghosts = [(s.number, s.greeting) for s in w.sources for _ in range(s.flying)]
            yield self._new_life(replace(spent, sources=(), ghosts=tuple(sorted((*w.ghosts, *ghosts)))))
        if budget.leave:
            yield replace(w, leaving=True, budget=replace(budget, leave=budget.leave - 1))
        if budget.crash_d:
            spent = replace(w, budget=replace(budget, crash_d=budget.crash_d - 1))
            first = LIFE * (w.d_life + 1) if self.has("grants differ between lives") else 0
            yield replace(
                spent,
                d_life=w.d_life + 1,
                greeting=first,
                granted=False,
                peer=None,
                warned=False,
                number=-1,
                counted=0,
                asked=0,
            )
        if budget.write_error:
            spent = replace(w, budget=replace(budget, write_error=budget.write_error - 1))
            for source in w.sources:
                if source.flying:
                    yield self._write_failed(spent, source)

    # --- the decode engine ---

    def _decode_steps(self, w: World) -> Iterator[World]:
        if w.peer is None:  # greet, again and again
            granted = w if w.granted else replace(w, granted=True, greeting=w.greeting + 1)
            yield granted.send(("hello", *granted.key))
        elif not (w.guest and w.known[-1][0] == w.d_life):
            yield w.send(("wanted", w.greeting))  # the answer to a heartbeat
        if w.peer is not None and w.peer != w.p_life:
            yield self._fence(w)  # the heartbeats of another incarnation do not count: silence
        silent = w.warned and self.has("nothing is asked of an engine that leaves")
        if w.number < 0 and w.peer is not None and not silent and w.asked < self.transfers:
            number = w.asked + (LIFE * w.d_life if self.has("numbers differ between lives") else 0)
            asked = replace(w, number=number, state=DestinationState.ASKED, counted=0, asked=w.asked + 1)
            yield asked.send(("ask", w.peer, *w.key, number))
        elif w.number >= 0 and w.state is DestinationState.CANCELLING:
            yield self._fence(w)  # the deadline of a cancel
        elif w.number >= 0:
            # A client's cancel is the same move: the tables agree, as a test of them says.
            yield self._move(w, DestinationEvent.TIMEOUT).send(("cancel", w.peer, w.greeting, w.number))

    def _move(self, w: World, event: DestinationEvent) -> World:
        """Along the table; an end frees the page."""
        after = DESTINATION_TABLE.next(w.state, event)
        over = after in DESTINATION_ENDS
        if over and w.state in DESTINATION_ENDS:
            raise Violation("a second terminal event on the decode engine")
        if after is DestinationState.CANCELLING and not self.has("free only when nothing can land"):
            over = True
        if not over:
            return replace(w, state=after)
        served = w.served + (after is DestinationState.READY)
        return self._part(replace(w, number=-1, state=DestinationState.DRAINED, counted=0, served=served))

    def _part(self, w: World) -> World:
        """Let a leaving prefill engine go once nothing that was asked of it is open."""
        is_open = w.number >= 0 and self.has("farewell is said when nothing is open")
        return w if not w.warned or is_open else w.send(("farewell", w.peer, *w.key))

    def _fence(self, w: World) -> World:
        """Give the prefill engine up: its key goes first, then its transfers end."""
        w = replace(w, warned=False)
        ended = self._move(w, DestinationEvent.PEER_LOST) if w.number >= 0 else w
        if not self.has("fence before reuse"):
            return replace(ended, peer=None)
        return replace(ended, peer=None, granted=False)

    def _land(self, w: World, number: int, key: tuple[int, int]) -> World | None:
        """A write arrives; None where its key is not valid."""
        if key != w.key or not w.granted:
            return None
        if number != w.number:
            raise Violation(f"a write of transfer {number} landed in the page of {w.number}")
        counted = replace(w, counted=w.counted + 1)
        return self._move(counted, DestinationEvent.COMPLETE) if counted.counted == self.weight else counted

    # --- the prefill engine ---

    def _prefill_steps(self, w: World) -> Iterator[World]:
        for index, (number, key) in enumerate(w.ghosts):
            rest = replace(w, ghosts=w.ghosts[:index] + w.ghosts[index + 1 :])
            yield self._land(rest, number, key) or rest
        for s in w.sources:
            yield from self._source_steps(w, s)
        if w.leaving and w.guest and not w.parted:
            yield w.send(("leaving", w.p_life))  # again with every heartbeat
        waits = w.guest and not w.parted and self.has("an engine leaves after the farewell")
        if w.leaving and not w.sources and not waits:
            if w.guest and w.number >= 0 and w.peer == w.p_life:
                raise Violation("the prefill engine ended while something was asked of it")
            yield self._new_life(w)

    def _new_life(self, w: World) -> World:
        return replace(w, p_life=w.p_life + 1, guest=False, leaving=False, parted=False, known=(), seen=frozenset())

    def _source_steps(self, w: World, s: Source) -> Iterator[World]:
        if s.state is SourceState.QUEUED:
            yield self._put(w, s, self._on(s, SourceEvent.ADMIT))
            rejected = self._on(s, SourceEvent.CANCEL)  # its deadline passed in the queue
            yield self._put(w, s, rejected, silent=True).send(("reject", s.number))
        if s.state is SourceState.PREFILLING and s.posted < self.weight:
            yield self._put(w, s, replace(s, posted=s.posted + 1, flying=s.flying + 1))
        if s.state is SourceState.PREFILLING and s.posted == self.weight:
            yield self._put(w, s, self._on(s, SourceEvent.COMPUTED))
        if s.flying:
            landed = self._land(w, s.number, s.greeting)
            yield self._write_failed(w, s) if landed is None else self._put(landed, s, replace(s, flying=s.flying - 1))
        elif s.state not in (SourceState.QUEUED, SourceState.PREFILLING):
            yield self._put(w, s, self._on(s, SourceEvent.QUIET))

    def _on(self, s: Source, event: SourceEvent) -> Source:
        if s.state in SOURCE_ENDS:
            raise Violation("a second terminal event on the prefill engine")
        return replace(s, state=SOURCE_TABLE.next(s.state, event))

    def _put(self, w: World, old: Source, new: Source, silent: bool = False) -> World:
        """Replace a transfer, or end it and say so."""
        others = tuple(s for s in w.sources if s is not old)
        if new.state not in SOURCE_ENDS:
            return replace(w, sources=tuple(sorted((*others, new), key=repr)))
        if new.flying and self.has("drained only when quiet"):
            raise Violation("a transfer ended on the prefill engine with a write in flight")
        ghosts = tuple(sorted((*w.ghosts, *[(new.number, new.greeting)] * new.flying)))
        ended = replace(w, sources=others, ghosts=ghosts)
        said = {SourceState.DRAINED: "drained", SourceState.FAILED: "fail"}.get(new.state)
        return ended if silent or said is None else ended.send((said, new.number))

    def _write_failed(self, w: World, s: Source) -> World:
        return self._put(w, s, self._on(replace(s, flying=s.flying - 1), SourceEvent.WRITE_FAILED))

    def _drop_guest(self, w: World) -> World:
        dropped = replace(w, guest=False, parted=False)
        for source in w.sources:
            dropped = self._put(dropped, source, self._on(source, SourceEvent.PEER_LOST))
        return dropped

    # --- messages ---

    def _deliver(self, w: World, message: Message) -> World:
        match message:
            case ("hello", int(life), int(greeting)):
                return self._hello(w, life, greeting)
            case ("reply", int(life), int(greeting), int(p_life)):
                fits = (life, greeting) == w.key and w.granted and w.peer is None
                return replace(w, peer=p_life) if fits else w
            case ("wanted", int(greeting)):
                return self._fence(w) if w.granted and greeting == w.greeting else w
            case ("ask", int(addressee), int(life), int(greeting), int(number)):
                return self._ask(w, addressee, (life, greeting), number)
            case ("cancel", int(addressee), int(greeting), int(number)):
                if addressee != w.p_life and self.has("drained speaks for one life only"):
                    return w.send(("wanted", greeting))
                return self._cancel(w, number)
            case ("leaving", int(p_life)):
                return self._part(replace(w, warned=True)) if w.peer == p_life else w
            case ("farewell", int(addressee), int(life), int(greeting)):
                current = (life, greeting) == w.known[-1] if w.guest else False
                fits = current or not self.has("a farewell belongs to its grant")
                return replace(w, parted=True) if w.guest and fits and addressee == w.p_life else w
            case (str(kind), int(number)):
                events = {
                    "ack": DestinationEvent.ACK,
                    "reject": DestinationEvent.REJECT,
                    "fail": DestinationEvent.FAIL,
                    "drained": DestinationEvent.DRAINED,
                }
                return self._move(w, events[kind]) if number == w.number else w
        raise AssertionError(message)

    def _lives(self, w: World) -> Lives:
        """The prefill engine's memory of hellos, made anew from the state."""
        lives = Lives()
        for life, greeting in w.known:
            lives.begin(life, greeting)
        if self.has("an ask is obeyed once"):
            for number in w.seen:
                lives.cancelled(number)
        return lives

    def _hello(self, w: World, life: int, greeting: int) -> World:
        meaning = self._lives(w).judge(life, greeting, present=w.guest)
        if meaning is Greeting.STALE:
            return w.send(("wanted", greeting))
        if meaning is Greeting.NEW:
            dropped = self._drop_guest(w) if w.guest else w
            known = (*[one for one in w.known if one[0] != life], (life, greeting))
            w = replace(dropped, guest=True, known=known)
        return w.send(("reply", life, greeting, w.p_life))

    def _ask(self, w: World, addressee: int, key: tuple[int, int], number: int) -> World:
        life = self._lives(w).current if w.guest else None
        live = any(s.number == number for s in w.sources)
        greeting = key[1]
        if life is not None and not self.has("an ask belongs to its grant"):
            greeting = life.greeting
        fate = judge_ask(life, number, greeting=greeting, addressee=addressee, own=w.p_life, copy=live)
        match fate:
            case Fate.UNGREETED:
                return w.send(("wanted", key[1]))
            case Fate.STALE:
                return w
        opened = Source(number, w.known[-1])
        sources = tuple(sorted((*w.sources, opened), key=repr))
        return replace(w, sources=sources, seen=w.seen | {number}).send(("ack", number))

    def _cancel(self, w: World, number: int) -> World:
        for s in w.sources:
            if s.number == number:
                cancelled = self._on(s, SourceEvent.CANCEL)
                if not self.has("drained only when quiet"):
                    cancelled = replace(cancelled, state=SourceState.DRAINED)
                return self._put(w, s, cancelled)
        if w.known and self.has("a cancel takes the number of its ask"):
            w = replace(w, seen=w.seen | {number})
        return w.send(("drained", number))
