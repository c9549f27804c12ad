"""What makes no difference any more is taken out of a world, so that worlds that only differ in it are one.

Lives, greetings and transfer numbers only grow. So a message about one that is over is ignored whenever it comes, or
answered with a message that is ignored, and what is remembered for such messages is of no use once none is under way.
`test_interleavings.py` compares the steps of worlds with those of what is left of them.
"""

from dataclasses import replace

from model_check.world import Message, Source, World
from sglang.srt.disaggregation.handoff.states import SourceState


def reduced(w: World) -> World:
    """A smaller world with the same future; one that cannot be made smaller."""
    while True:
        less = replace(
            w,
            messages=tuple(message for message in w.messages if not _dead(w, message)),
            sources=tuple(source for source in w.sources if not _over(w, source)),
            seen=_needed_numbers(w),
            known=_needed_lives(w),
            served=min(w.served, 1),
        )
        if less == w:
            return w
        w = less


def _dead(w: World, message: Message) -> bool:
    """Whether it would change nothing whenever it came."""
    match message:
        case ("reply", int(life), int(greeting), int()):
            return (life, greeting) != w.key or not w.granted
        case ("wanted", int(greeting)):
            return _past(w, greeting)
        case ("ack" | "reject" | "fail" | "drained", int(number)):
            return number != w.number
        case ("farewell", int(addressee), int(), int()):
            return addressee != w.p_life
        case ("hello", int(life), int(greeting)):
            return _past(w, greeting) and _stale_for_good(w, life, greeting)
        case ("ask", int(addressee), int(life), int(greeting), int()):
            revives = (life, greeting) in w.known[-1:] or ("hello", life, greeting) in w.messages
            return _past(w, greeting) and (addressee != w.p_life or not revives)
        case ("cancel", int(addressee), int(greeting), int(number)):
            known = number == w.number or _under_way(w, number, "ask") or number in {s.number for s in w.sources}
            if addressee == w.p_life and known:
                return False
            return _past(w, greeting) or (addressee == w.p_life and not _restarts(w))
        case ("leaving", int(p_life)):
            revives = any(other[0] == "reply" and other[3] == p_life for other in w.messages)
            return p_life not in (w.p_life, w.peer) and not revives
    return False


def _past(w: World, greeting: int) -> bool:
    """Whether that grant was taken away: the next one has another number."""
    return greeting != w.greeting or not w.granted


def _stale_for_good(w: World, life: int, greeting: int) -> bool:
    """Whether the prefill engine has heard of a later grant of that life, and will not forget it by a restart."""
    later = any(one[0] == life and one[1] > greeting for one in w.known)
    return not _restarts(w) and (later or (life, greeting) in w.known[:-1])


def _restarts(w: World) -> bool:
    """Whether the prefill engine may yet be started again."""
    return bool(w.leaving or w.budget.leave or w.budget.crash_p)


def _over(w: World, source: Source) -> bool:
    """Whether a transfer on the prefill engine has only to end, and nobody will ask after it."""
    asked_after = source.number == w.number or _under_way(w, source.number, "ask", "cancel")
    return source.state is SourceState.ABANDONING and not source.flying and not asked_after


def _under_way(w: World, number: int, *kinds: str) -> bool:
    return any(message[0] in kinds and message[-1] == number for message in w.messages)


def _needed_numbers(w: World) -> frozenset[int]:
    """Of those that were asked for or cancelled: no number is asked for anew."""
    return w.seen & {message[4] for message in w.messages if message[0] == "ask"}


def _needed_lives(w: World) -> tuple[tuple[int, int], ...]:
    """Of the decode engine's lives that have greeted: the current one, and those whose hello may come again."""
    greeting = {message[1] for message in w.messages if message[0] == "hello"}
    return tuple(one for one in w.known[:-1] if one[0] == w.d_life or one[0] in greeting) + w.known[-1:]
