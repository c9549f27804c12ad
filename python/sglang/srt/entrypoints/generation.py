"""One HTTP request's outputs: tokens in, text, finish reasons and counts out. Both HTTP dialects stand on this."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.step import TokenScore
from sglang.srt.entrypoints.replicas import EngineClient
from sglang.srt.entrypoints.scheduler_client import ClientGone, OpenCall
from sglang.srt.errors import RequestError
from sglang.srt.managers.detokenizer import Detokenizer, TextRules
from sglang.srt.managers.tokenizer import Tokenizer
from sglang.srt.messages.frontend import Generate, TokenOut
from sglang.srt.observability.metrics import Metrics

_SEED_STEP = 0x9E3779B97F4A7C15
_SEED_MASK = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """One prompt and what to do with it."""

    token_ids: tuple[int, ...]
    sampling: SamplingParams
    rules: TextRules
    n: int = 1
    priority: int = 0
    silent: bool = False
    """No output is wanted, only what is known of the prompt: the one token that the engine makes is not shown."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Why an output ended."""

    reason: str
    """stop, length or abort."""
    matched: str | int | None = None
    """The stop string or stop token."""


TopLogprobs = tuple[tuple[int, float], ...]


@dataclass(slots=True)
class Chunk:
    """What one output gained."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[TopLogprobs] = field(default_factory=list)
    id_logprobs: list[tuple[float, ...]] = field(default_factory=list)
    finish: Finish | None = None

    def add(self, other: "Chunk") -> None:
        """Append what came later."""
        self.text += other.text
        self.token_ids += other.token_ids
        self.logprobs += other.logprobs
        self.top_logprobs += other.top_logprobs
        self.id_logprobs += other.id_logprobs
        self.finish = other.finish


class Output:
    """One output so far."""

    def __init__(self, index: int, wanted: Wanted, tokenizer: Tokenizer) -> None:
        self.index = index
        self.prompt_ids = wanted.token_ids
        self.prompt_tokens = len(wanted.token_ids)
        self.prompt_scores: tuple[TokenScore, ...] = ()
        self.embedding: tuple[float, ...] = ()
        self._silent = wanted.silent
        self.completion_tokens = 0
        self.cached_tokens = 0
        self.finish: Finish | None = None
        self.finished_at = 0.0
        self.last_token_at = 0.0
        self._keep_stop = wanted.rules.no_stop_trim
        decode = tokenizer.decoder(skip_special_tokens=wanted.rules.skip_special_tokens)
        self._detokenizer = Detokenizer(decode, wanted.token_ids, wanted.rules)
        self._pending = Chunk(index)

    def add(self, out: TokenOut) -> int:
        """Takes new tokens in; returns how many of them count (none after a stop string)."""
        self.prompt_scores = self.prompt_scores or out.prompt_scores
        self.embedding = self.embedding or out.embedding
        self.cached_tokens = max(self.cached_tokens, out.cached_tokens)
        if self._silent:
            self.finish = Finish(out.finish_reason) if out.finish_reason else None
            return 0
        pending = self._pending
        hidden = out.matched_stop is not None and not self._keep_stop
        last = len(out.token_ids) - 1
        used = 0
        for position, token in enumerate(out.token_ids):
            used += 1
            if not (hidden and position == last):
                pending.text += self._detokenizer.push(token)
            if self._detokenizer.matched is not None:
                break
        pending.token_ids += out.token_ids[:used]
        pending.logprobs += out.logprobs[:used]
        pending.top_logprobs += out.top_logprobs[:used]
        pending.id_logprobs += out.id_logprobs[:used]
        self.completion_tokens += used
        self._conclude(out)
        return used

    def _conclude(self, out: TokenOut) -> None:
        if self._detokenizer.matched is None and out.finish_reason is not None:
            self._pending.text += self._detokenizer.finish()
            self.finish = Finish(out.finish_reason, out.matched_stop)
        if self._detokenizer.matched is not None:
            self.finish = Finish("stop", self._detokenizer.matched)

    def take(self, least: int) -> Chunk | None:
        """The gain since the last call, once it has `least` tokens or the output ended."""
        chunk = self._pending
        chunk.finish = self.finish
        first = self.completion_tokens == len(chunk.token_ids)
        if chunk.finish is None and (not chunk.token_ids or (len(chunk.token_ids) < least and not first)):
            return None
        self._pending = Chunk(self.index)
        return chunk


class Generation:
    """The outputs of one HTTP request: n for each prompt, prompts in order."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        metrics: Metrics,
        wanted: Sequence[Wanted],
        rid: str,
        *,
        stream_interval: int = 1,
        trace: str = "",
    ) -> None:
        """Submits everything. `rid` must be new to the scheduler. Raises RequestError where it cannot take it."""
        self.started_at = time.perf_counter()
        self._metrics = metrics
        self._interval = stream_interval
        self._closers: list[Callable[[], object]] = []
        requests = [
            request for number, item in enumerate(wanted) for request in _requests(item, f"{rid}-{number}", trace)
        ]
        plan = [item for item in wanted for _ in range(item.n)]
        self.outputs = [Output(index, item, tokenizer) for index, item in enumerate(plan)]
        self._open = len(self.outputs)
        self._call: OpenCall = client.submit(requests)
        for item in wanted:
            metrics.started(len(item.token_ids))

    async def take(self) -> list[Chunk]:
        """What the outputs gained, one chunk each at most; empty when all have ended.

        Raises RequestError when the engine refused or lost the request, ClientGone after `client_gone`.
        """
        while self._open:
            touched: dict[int, Output] = {}
            for index, out in await self._call.take():
                output = self.outputs[index]
                if output.finish is None:
                    self._add(output, out)
                    touched[index] = output
            chunks = [chunk for output in touched.values() if (chunk := output.take(self._interval))]
            self._open -= sum(chunk.finish is not None for chunk in chunks)
            if chunks:
                return chunks
        return []

    async def collect(self) -> list[Chunk]:
        """Waits for the end; returns each output whole."""
        whole = [Chunk(output.index) for output in self.outputs]
        while chunks := await self.take():
            for chunk in chunks:
                whole[chunk.index].add(chunk)
        return whole

    def abort(self) -> None:
        """Ends every output with finish reason abort."""
        self._call.abort()

    def on_close(self, closer: Callable[[], object]) -> None:
        """`closer` runs in `close`."""
        self._closers.append(closer)

    def client_gone(self) -> None:
        """Stops the engine's work at once; whoever waits in `take` gets ClientGone."""
        self._call.close(ClientGone())

    def close(self) -> None:
        """The request is over, well or not; what still runs is stopped. Idempotent."""
        self._call.close()
        closers, self._closers = self._closers, []
        for closer in closers:
            closer()
        now = time.perf_counter()
        for output in self.outputs:
            if output.finish is None:  # refused, lost or left by the client
                output.finish = Finish("abort")
                self._finished(output, now)

    def _add(self, output: Output, out: TokenOut) -> None:
        now = time.perf_counter()
        first = output.completion_tokens == 0
        used = output.add(out)
        if used and first:
            self._metrics.first_token(now - self.started_at)
        elif used:
            self._metrics.next_tokens(now - output.last_token_at, used)
        output.last_token_at = now
        if output.finish is not None:
            self._finished(output, now)
            if out.finish_reason is None:
                self._call.drop(output.index)

    def _finished(self, output: Output, now: float) -> None:
        output.finished_at = now
        aborted = output.finish is not None and output.finish.reason == "abort"
        self._metrics.finished(now - self.started_at, output.completion_tokens, aborted=aborted)


def _requests(wanted: Wanted, rid: str, trace: str) -> list[Generate]:
    """The n scheduler requests of one prompt; with a seed, each output gets its own, derived from it."""
    requests = []
    for copy in range(wanted.n):
        sampling = wanted.sampling
        if sampling.seed is not None:
            seed = (sampling.seed + copy * _SEED_STEP) & _SEED_MASK
            sampling = msgspec.structs.replace(sampling, seed=seed)
        requests.append(
            Generate(
                rid=f"{rid}-{copy}",
                token_ids=wanted.token_ids,
                sampling=sampling,
                group=rid if wanted.n > 1 else "",
                priority=wanted.priority,
                trace=trace,
            )
        )
    return requests


def check_outputs(prompts: int, n: int, limit: int) -> None:
    """Raises RequestError when one HTTP request asks for more than `limit` outputs."""
    if prompts * n > limit:
        raise RequestError(f"{prompts} prompts x n {n} pass the limit of {limit} outputs a request", param="n")
