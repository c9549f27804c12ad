"""The HTTP process's end of the connection to the scheduler."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import zmq

from sglang.srt.core.sampling import SamplingParams
from sglang.srt.errors import EngineError, RequestError, WireError
from sglang.srt.ipc.zmq_channel import ZmqChannel
from sglang.srt.messages.codec import Codec
from sglang.srt.messages.frontend import (
    Abort,
    AbortAll,
    Done,
    FlushCache,
    FlushReply,
    Generate,
    GetState,
    Outputs,
    Pause,
    Profile,
    Ready,
    Refused,
    Resume,
    Shutdown,
    State,
    ToFrontend,
    TokenOut,
    ToScheduler,
)

STATE_DEADLINE_S = 3.0
"""A loop that plans steps of tens of milliseconds answers far sooner; probes usually give up after 5 s."""
STATE_CACHE_S = 0.25
"""Health probes within this time share one answer."""
_TICK_S = 0.5

PauseMode = Literal["abort", "in_place", "retract"]
Question = GetState | FlushCache | Pause | Resume | Profile
Answer = State | FlushReply | Done


class Unavailable(RequestError):
    """The engine cannot take or finish this request now (503)."""

    def __init__(
        self, message: str, *, status: int = 503, kind: str = "server_error", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, status=status, kind=kind)
        self.retry_after_s = retry_after_s


class ClientGone(RequestError):
    """The client closed the connection; nobody reads the answer."""

    def __init__(self) -> None:
        super().__init__("the client closed the request", status=499, kind="client_closed_request")


class OpenCall:
    """The outputs of one HTTP request: one scheduler request each, in the order that they were submitted."""

    def __init__(self, client: "SchedulerClient", rids: Sequence[str]) -> None:
        self._client = client
        self._live = dict(enumerate(rids))
        self._events: list[tuple[int, TokenOut]] = []
        self._error: RequestError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def take(self) -> list[tuple[int, TokenOut]]:
        """What came since the last call, as (output, tokens); waits for some. Raises RequestError on failure."""
        if not self._events and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._events:
            events, self._events = self._events, []
            return events
        assert self._error is not None
        raise self._error

    def abort(self) -> None:
        """Asks the scheduler to stop every output; their last TokenOut still comes."""
        for rid in self._live.values():
            self._client.send(Abort(rid=rid))

    def drop(self, output: int) -> None:
        """Stops one output; nothing of it comes any more."""
        rid = self._live.pop(output, None)
        if rid is not None:
            self._client.forget(rid)
            self._client.send(Abort(rid=rid))

    def close(self, error: RequestError | None = None) -> None:
        """Stops every output at once; whoever waits in `take` gets `error`."""
        for output in list(self._live):
            self.drop(output)
        if error is not None:
            self.fail(error)

    def deliver(self, output: int, out: TokenOut) -> None:
        """For SchedulerClient: tokens of an output arrived."""
        if out.finish_reason is not None:
            self._live.pop(output, None)
        self._events.append((output, out))
        self._wake()

    def fail(self, error: RequestError) -> None:
        """For SchedulerClient: no more will come."""
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class SchedulerClient:
    """Submits requests and hands out what comes back. Lives on one event loop; not thread-safe."""

    def __init__(self, address: str, *, on_state: Callable[[State], None] = lambda state: None) -> None:
        """Binds `address`, to which the scheduler connects. `on_state` sees every snapshot, whoever asked for it."""
        self._channel: ZmqChannel[ToFrontend, ToScheduler] = ZmqChannel(
            address, incoming=Codec(ToFrontend), outgoing=Codec(ToScheduler), bind=True
        )
        self._on_state = on_state
        self._open: dict[str, tuple[OpenCall, int, int]] = {}
        """By rid: the call, which of its outputs, and the tokens that it may take."""
        self._replies: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = itertools.count(1)
        self._probe: asyncio.Task[State] | None = None
        self._probed_at = float("-inf")
        self._drain_scheduled = False
        self._tick: asyncio.TimerHandle | None = None
        self.ready: asyncio.Future[Ready] | None = None
        self.dead: str | None = None
        """Why the scheduler is gone."""

    def start(self) -> None:
        """Begins to read, on the running event loop."""
        loop = asyncio.get_running_loop()
        self.ready = loop.create_future()
        loop.add_reader(int(self._channel.socket.getsockopt(zmq.FD)), self._drain)
        self._on_tick()

    def close(self) -> None:
        """Gives up the connection; open calls fail."""
        self.died("the server is closing")
        if self._tick is not None:
            self._tick.cancel()
            asyncio.get_running_loop().remove_reader(int(self._channel.socket.getsockopt(zmq.FD)))
        self._channel.close()

    @property
    def open_outputs(self) -> int:
        """Outputs that have not ended."""
        return len(self._open)

    @property
    def outstanding_tokens(self) -> int:
        """Prompt tokens and possible output tokens of what has not ended."""
        return sum(tokens for _, _, tokens in self._open.values())

    def submit(self, requests: Sequence[Generate]) -> OpenCall:
        """Starts `requests` as one call. Raises Unavailable when the scheduler is gone, 413 for a giant."""
        if self.dead is not None:
            raise Unavailable(self.dead)
        call = OpenCall(self, [request.rid for request in requests])
        for output, request in enumerate(requests):
            self._open[request.rid] = (call, output, len(request.token_ids) + request.sampling.max_new_tokens)
            try:
                self.send(request)
            except (WireError, EngineError) as error:
                self._open.pop(request.rid)
                call.close()
                raise _refusal(error) from error
        return call

    def forget(self, rid: str) -> None:
        """Later answers for `rid` are dropped."""
        self._open.pop(rid, None)

    def send(self, message: ToScheduler) -> None:
        """Raises WireError for a message over the frame limit, EngineError when the scheduler does not read."""
        if self.dead is not None:
            return
        self._channel.send(message)
        if not self._drain_scheduled:
            # ZeroMQ's descriptor is edge-triggered, and a send may swallow the edge of a message that just arrived.
            self._drain_scheduled = True
            asyncio.get_running_loop().call_soon(self._drain)

    def abort_all(self) -> None:
        """Stops every request; each gets its last TokenOut."""
        self.send(AbortAll())

    def shutdown(self, *, drain: bool) -> None:
        """Tells the scheduler to leave its loop."""
        self.send(Shutdown(drain=drain))

    async def one_token(
        self, token_ids: tuple[int, ...], sampling: SamplingParams, rid: str, deadline_s: float
    ) -> TokenOut:
        """The last TokenOut of a short request. Raises RequestError on failure, EngineError when late."""
        call = self.submit([Generate(rid=rid, token_ids=token_ids, sampling=sampling)])
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    for _, out in await call.take():
                        if out.finish_reason is not None:
                            return out
        except TimeoutError as error:
            raise EngineError(f"the engine generated no token within {deadline_s:g} s") from error
        finally:
            call.close()

    async def get_state(self, deadline_s: float = STATE_DEADLINE_S) -> State:
        """A snapshot. Raises EngineError when the scheduler's loop does not answer in time."""
        number = next(self._numbers)
        reply = await self._ask(GetState(call=number), number, deadline_s)
        assert isinstance(reply, State)
        return reply

    async def recent_state(self) -> State:
        """A snapshot at most STATE_CACHE_S old; callers at the same time share one question."""
        now = asyncio.get_running_loop().time()
        if self._probe is None or (self._probe.done() and now - self._probed_at > STATE_CACHE_S):
            self._probe = asyncio.create_task(self._ask_state())
            self._probe.add_done_callback(lambda probe: probe.cancelled() or probe.exception())
        return await asyncio.shield(self._probe)

    async def flush_cache(self, deadline_s: float = 30.0) -> int:
        """Drops cached pages that no request uses; returns how many."""
        number = next(self._numbers)
        reply = await self._ask(FlushCache(call=number), number, deadline_s)
        assert isinstance(reply, FlushReply)
        return reply.pages

    async def pause(self, mode: PauseMode, deadline_s: float = 30.0) -> None:
        """Lets the scheduler plan no more steps. Raises EngineError when it does not answer."""
        number = next(self._numbers)
        await self._ask(Pause(call=number, mode=mode), number, deadline_s)

    async def resume(self, deadline_s: float = 30.0) -> None:
        """Lets it go on."""
        number = next(self._numbers)
        await self._ask(Resume(call=number), number, deadline_s)

    async def profile(self, *, start: bool, folder: str = "", deadline_s: float = 120.0) -> str:
        """Begins or ends a torch profile; returns the file's path at its end. Raises RequestError where it cannot."""
        number = next(self._numbers)
        reply = await self._ask(Profile(call=number, start=start, folder=folder), number, deadline_s)
        assert isinstance(reply, Done)
        if reply.failed:
            raise RequestError(reply.text)
        return reply.text

    def died(self, reason: str) -> None:
        """The scheduler is gone: every open call and question fails. Idempotent."""
        if self.dead is not None:
            return
        self.dead = reason
        for call, _, _ in self._open.values():
            call.fail(Unavailable(reason))
        self._open.clear()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(EngineError(reason))
        if self.ready is not None and not self.ready.done():
            self.ready.set_exception(EngineError(reason))
            self.ready.exception()  # whoever waits gets it; nobody waiting is no accident worth a warning

    async def _ask_state(self) -> State:
        try:
            return await self.get_state()
        finally:
            self._probed_at = asyncio.get_running_loop().time()  # in time: done callbacks come later than `done`

    async def _ask(self, question: Question, number: int, deadline_s: float) -> Answer:
        if self.dead is not None:
            raise EngineError(self.dead)
        reply: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._replies[number] = reply
        try:
            self.send(question)
            return await asyncio.wait_for(reply, deadline_s)
        except TimeoutError as error:
            raise EngineError(f"the scheduler's loop did not answer within {deadline_s:g} s") from error
        finally:
            self._replies.pop(number, None)

    def _on_tick(self) -> None:
        """Bounds the delay of a lost wake-up, should ZeroMQ's edge ever be missed."""
        self._drain()
        self._tick = asyncio.get_running_loop().call_later(_TICK_S, self._on_tick)

    def _drain(self) -> None:
        self._drain_scheduled = False
        if self._channel.socket.closed:
            return
        for message in self._channel.poll():
            self._receive(message)

    def _receive(self, message: ToFrontend) -> None:
        match message:
            case Outputs(items=items):
                for out in items:
                    self._token_out(out)
            case Refused():
                entry = self._open.pop(message.rid, None)
                if entry is not None:
                    entry[0].fail(
                        Unavailable(
                            message.message,
                            status=message.status,
                            kind=message.kind,
                            retry_after_s=message.retry_after_s,
                        )
                    )
            case State() | FlushReply() | Done():
                if isinstance(message, State):
                    self._on_state(message)
                reply = self._replies.pop(message.call, None)
                if reply is not None and not reply.done():
                    reply.set_result(message)
            case Ready():
                if self.ready is not None and not self.ready.done():
                    self.ready.set_result(message)

    def _token_out(self, out: TokenOut) -> None:
        entry = self._open.get(out.rid)
        if entry is None:
            return  # ended by a stop string or a gone client, and its abort was still on the way
        if out.finish_reason is not None:
            del self._open[out.rid]
        entry[0].deliver(entry[1], out)


def _refusal(error: WireError | EngineError) -> RequestError:
    if isinstance(error, WireError):
        return RequestError(f"the request is too large: {error}", status=413)
    return Unavailable(str(error), retry_after_s=1.0)
