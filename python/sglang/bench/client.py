"""Sends one request, follows its answer, keeps the times."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from sglang.bench.dataset import Prompt
from sglang.bench.dialects import Delta, Dialect, RequestSettings
from sglang.bench.sse import EventParser

Clock = Callable[[], float]


class AnswerError(Exception):
    """The server's answer reports a failure or cannot be understood."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What became of one request. Times in seconds; `sent_at` is on the monotonic clock."""

    sent_at: float
    latency: float
    prompt_len: int
    output_len: int = 0
    ttft: float = 0.0
    itl: tuple[float, ...] = ()
    """Gaps between output tokens: a chunk of k tokens after a gap g counts as k gaps of g / k."""
    text: str = ""
    cached_tokens: int = 0
    counted_by_server: bool = True
    """False: the server gave no token count, so that output_len is the number of chunks with text."""
    error: str = ""
    """Why it failed; empty for a request that was answered."""

    @property
    def ok(self) -> bool:
        """Whether the request was answered."""
        return not self.error


class Answer:
    """Follows one answer from event to event."""

    def __init__(self, sent_at: float) -> None:
        self._sent_at = sent_at
        self._last = sent_at
        self._events = 0
        self._chunks = 0
        self._shown: int | None = None
        self._latest = Delta()
        self.ttft = 0.0
        self.itl: list[float] = []
        self.text = ""
        self.prompt_tokens: int | None = None
        self.cached_tokens = 0
        self.finish_reason: str | None = None
        self.tokens: int | None = None

    def add(self, delta: Delta, now: float) -> None:
        """Take in one event that arrived at `now`."""
        grown = bool(delta.text) and not (delta.cumulative and delta.text == self.text)
        self.text = delta.text if delta.cumulative else self.text + delta.text
        self._chunks += grown
        self._events += 1
        new = self._new_tokens(delta, grown)
        if new and not self.ttft:
            self.ttft = now - self._sent_at
            new = 0  # tokens that came along with the first one have no gap of their own
            self._last = now
        if new:
            self.itl += [(now - self._last) / new] * new
            self._last = now
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.prompt_tokens = self.prompt_tokens if delta.prompt_tokens is None else delta.prompt_tokens
        self.cached_tokens = delta.cached_tokens or self.cached_tokens

    def _new_tokens(self, delta: Delta, grown: bool) -> int:
        """How many tokens an event brings: by the server's count where it has counted from the start, else 1 a text.

        A count that comes only at the end says nothing of the tokens' times.
        """
        if delta.completion_tokens is None:
            return int(grown)
        counted = self.tokens is not None or self._events == 1
        before, self.tokens = self.tokens or 0, delta.completion_tokens
        return max(0, delta.completion_tokens - before) if counted else int(grown)

    @property
    def output_len(self) -> int:
        """Output tokens: the server's count, else the chunks that brought text."""
        return self._chunks if self.tokens is None else self.tokens


class BenchClient:
    """One HTTP client for all requests of a run."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        base_url: str,
        dialect: Dialect,
        settings: RequestSettings,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._http = http
        self._url = base_url.rstrip("/") + dialect.path
        self._dialect = dialect
        self._settings = settings
        self._clock = clock

    async def send(self, prompt: Prompt, on_text: Callable[[str], None] | None = None) -> RequestOutput:
        """Make one request and return its outcome: what the server or the network does wrong ends up in `error`.

        `on_text` gets all the text so far after each event. Raises ConfigError for a prompt that cannot be sent.
        """
        payload = self._dialect.payload(prompt, self._settings)
        answer = Answer(sent_at := self._clock())
        error = ""
        try:
            await self._exchange(payload, answer, on_text)
            if answer.finish_reason == "abort":
                error = "the server aborted the request"
            elif answer.output_len == 0:
                error = "the answer has no tokens"
        except (httpx.HTTPError, AnswerError) as failure:
            error = str(failure) or repr(failure)
        return RequestOutput(
            sent_at=sent_at,
            latency=self._clock() - sent_at,
            prompt_len=prompt.prompt_len if answer.prompt_tokens is None else answer.prompt_tokens,
            output_len=answer.output_len,
            ttft=answer.ttft,
            itl=tuple(answer.itl),
            text=answer.text,
            cached_tokens=answer.cached_tokens,
            counted_by_server=answer.tokens is not None,
            error=error,
        )

    async def _exchange(self, payload: dict[str, Any], answer: Answer, on_text: Callable[[str], None] | None) -> None:
        async with self._http.stream("POST", self._url, json=payload) as response:
            if response.status_code != httpx.codes.OK:
                body = (await response.aread()).decode(errors="replace")
                raise AnswerError(f"HTTP {response.status_code}: {body[:500]}")
            if not payload.get("stream"):
                self._take((await response.aread()).decode(errors="replace"), answer)
                return
            parser = EventParser()
            async for data in response.aiter_bytes():
                for event in _events(parser, data):
                    if event == "[DONE]":
                        return
                    self._take(event, answer)
                    if on_text is not None:
                        on_text(answer.text)
        raise AnswerError("the stream ended without [DONE]")

    def _take(self, event: str, answer: Answer) -> None:
        try:
            content = json.loads(event)
            if "error" in content:
                raise AnswerError(f"error in the answer: {json.dumps(content['error'])[:500]}")
            answer.add(self._dialect.read(content), self._clock())
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise AnswerError(f"cannot understand {event[:200]!r} ({error!r})") from error


def _events(parser: EventParser, data: bytes) -> list[str]:
    try:
        return list(parser.feed(data))
    except UnicodeDecodeError as error:
        raise AnswerError(f"the stream is not UTF-8 ({error})") from error
