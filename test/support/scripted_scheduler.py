"""A scheduler without an engine: speaks messages/frontend.py over ZeroMQ and emits scripted tokens.

As a thread it lets a test choose the tokens and see what it was sent; as a process (`python scripted_scheduler.py
--address A`) it stands in for the scheduler process, and repeats each prompt as its answer.
"""

import argparse
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import zmq

from sglang.srt.core.step import TokenScore
from sglang.srt.messages.codec import Codec
from sglang.srt.messages.frontend import (
    Abort,
    AbortAll,
    FlushCache,
    FlushReply,
    Generate,
    GetState,
    Outputs,
    Ready,
    Refused,
    Shutdown,
    State,
    ToFrontend,
    TokenOut,
    ToScheduler,
)

Answer = Callable[[Generate], Sequence[int]]


def repeat_prompt(request: Generate) -> Sequence[int]:
    return tuple(itertools.islice(itertools.cycle(request.token_ids), request.sampling.max_new_tokens))


@dataclass
class Running:
    request: Generate
    tokens: Iterator[int]
    sent: int = 0


@dataclass
class ScriptedScheduler:
    """Fields may be changed while it runs."""

    address: str
    answer: Answer = repeat_prompt
    refuse: Callable[[Generate], Refused | None] = lambda request: None
    step_s: float = 0.0
    tokens_a_step: int = 1
    hang: bool = False
    """Reads nothing and says nothing."""
    cached_tokens: int = 0
    embedding: bool = False
    gauges: dict[str, float] = field(default_factory=dict)
    ready: Ready = field(
        default_factory=lambda: Ready(
            max_total_tokens=4096,
            max_running_requests=64,
            context_length=2048,
            page_size=16,
            model="scripted",
            role="null",
        )
    )
    seen: list[ToScheduler] = field(default_factory=list)
    running: dict[str, Running] = field(default_factory=dict)
    stopped: bool = False

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.stopped = True
        self._thread.join(10)

    def aborted(self) -> list[str]:
        return [message.rid for message in list(self.seen) if isinstance(message, Abort)]

    def generated(self) -> list[Generate]:
        requests = [message for message in list(self.seen) if isinstance(message, Generate)]
        return [request for request in requests if not request.rid.startswith("health")]

    def run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.connect(self.address)
        self._out: Codec[ToFrontend] = Codec(ToFrontend)
        incoming: Codec[ToScheduler] = Codec(ToScheduler)
        self._send(self.ready)
        draining = False
        while not self.stopped and not (draining and not self.running):
            if self.hang:
                time.sleep(0.01)
                continue
            if self._socket.poll(0 if self.running else 20):
                while self._socket.poll(0):
                    message = incoming.decode(self._socket.recv())
                    self.seen.append(message)
                    if isinstance(message, Shutdown):
                        draining, self.stopped = True, not message.drain
                    self._receive(message)
            self._step()
        self._socket.close()
        context.term()

    def _send(self, message: ToFrontend) -> None:
        self._socket.send(self._out.encode(message))

    def _receive(self, message: ToScheduler) -> None:
        match message:
            case Generate():
                refused = self.refuse(message)
                if refused is not None:
                    self._send(refused)
                else:
                    self.running[message.rid] = Running(message, iter(self.answer(message)))
            case Abort(rid=rid):
                self._abort([rid])
            case AbortAll():
                self._abort(list(self.running))
            case GetState(call=call):
                gauges = {"num_running_reqs": float(len(self.running)), "num_queue_reqs": 0.0, **self.gauges}
                counters = {"kv_transfer_total_mb": 12.5}
                self._send(
                    State(call=call, gauges=gauges, counters=counters, info={}, samples={"step_seconds": (0.001,)})
                )
            case FlushCache(call=call):
                self._send(FlushReply(call=call, pages=7))
            case Shutdown():
                pass

    def _abort(self, rids: list[str]) -> None:
        live = [rid for rid in rids if self.running.pop(rid, None)]
        if live:
            self._send(Outputs(items=tuple(TokenOut(rid=r, token_ids=(), finish_reason="abort") for r in live)))

    def _step(self) -> None:
        items = [out for run in list(self.running.values()) if (out := self._advance(run))]
        if items:
            self._send(Outputs(items=tuple(items)))
            time.sleep(self.step_s)

    def _advance(self, run: Running) -> TokenOut | None:
        sampling = run.request.sampling
        tokens: list[int] = []
        finish = None
        for _ in range(self.tokens_a_step):
            token = next(run.tokens, None)
            if token is not None:
                tokens.append(token)
                run.sent += 1
            if token in sampling.stop_token_ids and run.sent > sampling.min_new_tokens:
                finish = "stop"
            elif token is None or run.sent >= sampling.max_new_tokens:
                finish = "length"
            if finish:
                self.running.pop(run.request.rid, None)
                break
        top = tuple(tuple((token + i, -0.5 - i) for i in range(sampling.top_logprobs)) for token in tokens)
        return TokenOut(
            rid=run.request.rid,
            token_ids=tuple(tokens),
            logprobs=(-0.5,) * len(tokens) if sampling.logprobs else (),
            top_logprobs=top if sampling.top_logprobs else (),
            finish_reason=finish,
            matched_stop=tokens[-1] if finish == "stop" else None,
            prompt_scores=scores_of(run.request) if run.sent == len(tokens) else (),
            id_logprobs=tuple((-2.0,) * len(sampling.logprob_ids) for _ in tokens) if sampling.logprob_ids else (),
            embedding=(0.6, 0.8) if self.embedding else (),
            cached_tokens=self.cached_tokens,
        )


def scores_of(request: Generate) -> tuple[TokenScore, ...]:
    """A prompt's scores: -1.25 for every token."""
    first, sampling = request.sampling.scored_from, request.sampling
    if first < 0:
        return ()
    top = tuple((5 + i, -1.25 - i) for i in range(sampling.top_logprobs))
    score = TokenScore(logprob=-1.25, top=top, ids=(-2.0,) * len(sampling.logprob_ids))
    return (score,) * (len(request.token_ids) - 1 - first)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--fail", type=int)
    parser.add_argument("--step", type=float, default=0.0)
    parser.add_argument("--linger", type=float, default=0.0, help="seconds that peers still need it after its requests")
    arguments = parser.parse_args()
    sys.stdin.readline()
    if arguments.fail is not None:
        print("scripted: no such weights", file=sys.stderr)
        sys.exit(arguments.fail)
    scheduler = ScriptedScheduler(arguments.address, step_s=arguments.step)

    def parent_died() -> None:
        sys.stdin.read()
        scheduler.stopped = True

    threading.Thread(target=parent_died, daemon=True).start()
    scheduler.run()
    end = time.monotonic() + arguments.linger
    while arguments.linger and time.monotonic() < end:
        if scheduler.stopped:
            return
        time.sleep(0.02)
    print("scripted: finished", file=sys.stderr)


if __name__ == "__main__":
    main()
