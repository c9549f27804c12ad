"""Messages of the frontend, turned into requests and answers."""

import random
from typing import TYPE_CHECKING

from sglang.srt.core.grammar import GrammarState
from sglang.srt.core.sampling import SamplingParams
from sglang.srt.ipc.channel import Channel
from sglang.srt.managers.request import Request
from sglang.srt.messages.frontend import (
    Abort,
    AbortAll,
    Done,
    FlushCache,
    FlushReply,
    Generate,
    GetState,
    Pause,
    Profile,
    Refused,
    Resume,
    Shutdown,
    State,
    ToFrontend,
    ToScheduler,
)

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler import Scheduler


class Intake:
    """Checks what comes in against the engine's bounds before it touches any state."""

    def __init__(self, scheduler: "Scheduler", channel: Channel[ToScheduler, ToFrontend], seed: int) -> None:
        self._scheduler = scheduler
        self._channel = channel
        self._seeds = random.Random(seed)
        self._leaving = False

    @property
    def over(self) -> bool:
        """Whether a Shutdown has been obeyed."""
        return self._leaving and self._scheduler.idle and self._scheduler.role.departed()

    def hear(self, message: ToScheduler) -> None:
        """Obey one message."""
        match message:
            case Generate():
                self._generate(message)
            case Abort(rid=rid):
                self._abort(rid)
            case AbortAll():
                self._abort_all()
            case FlushCache(call=call):
                self._channel.send(FlushReply(call=call, pages=self._scheduler.flush()))
            case Pause(call=call, mode=mode):
                self._pause(mode)
                self._channel.send(Done(call=call, text=mode))
            case Resume(call=call):
                self._scheduler.paused = False
                self._channel.send(Done(call=call))
            case Profile(call=call):
                # Whoever has a profiler answers before the scheduler hears of it.
                self._channel.send(Done(call=call, text="this engine has no profiler", failed=True))
            case GetState(call=call):
                self._channel.send(self._state(call))
            case Shutdown(drain=drain):
                self._leaving = True
                self._scheduler.role.leave()
                if not drain:
                    self._abort_all()

    def _generate(self, message: Generate) -> None:
        refusal = self._refusal(message)
        if refusal is not None:
            self._channel.send(refusal)
            return
        scheduler = self._scheduler
        compiling = False
        if message.sampling.grammar is not None:
            state = scheduler.grammars.acquire(message.sampling.grammar)
            compiling = state is GrammarState.PENDING
            if state is GrammarState.REJECTED:
                self._channel.send(_refused(message, 400, scheduler.grammars.reason(message.sampling.grammar)))
                scheduler.grammars.release(message.sampling.grammar)
                return
        seed = message.sampling.seed
        scheduler.enqueue(
            Request(
                rid=message.rid,
                tokens=list(message.token_ids),
                prompt_length=len(message.token_ids),
                sampling=message.sampling,
                seed=self._seeds.getrandbits(63) if seed is None else seed & (1 << 63) - 1,
                arrived=scheduler.now(),
                limit=self._limit(message.token_ids, message.sampling),
                group=message.group,
                priority=message.priority,
                trace=message.trace,
                compiling=compiling,
            )
        )

    def _room(self) -> int:
        """Tokens that one request may hold: the context, or the whole pool where that is smaller."""
        scheduler = self._scheduler
        return min(scheduler.limits.context, scheduler.cache.num_pages * scheduler.cache.page_size)

    def _limit(self, tokens: tuple[int, ...], sampling: SamplingParams) -> int:
        return min(sampling.max_new_tokens, self._room() - len(tokens))

    def _refusal(self, message: Generate) -> Refused | None:
        scheduler = self._scheduler
        if not scheduler.role.samples:
            return _refused(message, 400, "this is a prefill engine: send requests to a decode engine")
        if message.rid in scheduler.requests:
            return _refused(message, 400, f"request id {message.rid!r} is in use")
        if not message.token_ids:
            return _refused(message, 400, "the prompt is empty")
        if message.sampling.max_new_tokens < 1:
            return _refused(message, 400, f"max_new_tokens must be at least 1, not {message.sampling.max_new_tokens}")
        if len(message.token_ids) >= self._room():
            tokens, room = len(message.token_ids), self._room()
            return _refused(message, 400, f"the prompt has {tokens} tokens; this engine holds {room - 1} at most")
        if self._leaving:
            return _refused(message, 503, "the engine is shutting down", retry_after_s=5.0)
        if len(scheduler.queue) >= scheduler.limits.max_queued:
            return _refused(message, 503, f"{len(scheduler.queue)} requests are waiting already", retry_after_s=1.0)
        return None

    def _pause(self, mode: str) -> None:
        self._scheduler.paused = True
        if mode == "abort":
            self._abort_all()
        elif mode == "retract":
            self._scheduler.retract_running()

    def _abort(self, rid: str) -> None:
        request = self._scheduler.requests.get(rid)
        if request is not None:
            self._scheduler.end(request, "abort")

    def _abort_all(self) -> None:
        for rid in list(self._scheduler.requests):
            self._abort(rid)

    def _state(self, call: int) -> State:
        scheduler = self._scheduler
        return State(
            call=call,
            gauges=scheduler.gauges(),
            counters={
                **scheduler.tally.counters(),
                **scheduler.role.counters(),
                **scheduler.grammars.counters(),
            },
            info=scheduler.role.info(),
            samples=scheduler.role.samples_since(),
        )


def _refused(message: Generate, status: int, text: str, retry_after_s: float | None = None) -> Refused:
    kind = "invalid_request_error" if status < 500 else "service_unavailable"
    return Refused(rid=message.rid, status=status, kind=kind, message=text, retry_after_s=retry_after_s)
