"""What every route is given: configuration, tokenizer, connection to the scheduler, metrics, and the server's phase."""

import logging
import time
import uuid
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum

from sglang.srt.config.server import ServerConfig
from sglang.srt.core.sampling import SamplingParams
from sglang.srt.core.trace import RequestSpans, RootSpan
from sglang.srt.entrypoints.generation import Generation, Wanted, check_outputs
from sglang.srt.entrypoints.replicas import EngineClient
from sglang.srt.entrypoints.scheduler_client import Unavailable
from sglang.srt.errors import RequestError
from sglang.srt.managers.detokenizer import TextRules
from sglang.srt.managers.tokenizer import Tokenizer
from sglang.srt.messages.frontend import Ready, TokenOut
from sglang.srt.observability.metrics import Metrics

MAX_OUTPUTS = 1024
"""Outputs (prompts x n) of one HTTP request."""

MAX_SCORES = 500_000
"""Log probabilities of a prompt, alternatives included: about 10 MB of the 16 MB that a frame may have."""

_log = logging.getLogger("sglang.requests")


class Phase(Enum):
    """A server's life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """Told to stop: finishes what it has, refuses more."""


@dataclass
class Front:
    """The HTTP process's state. One event loop owns it."""

    config: ServerConfig
    tokenizer: Tokenizer
    client: EngineClient
    metrics: Metrics
    phase: Phase = Phase.STARTING
    ready: Ready | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    spans: RequestSpans | None = None
    """Where requests are traced (--otlp-endpoint)."""
    traceparent: ContextVar[str] = field(default_factory=lambda: ContextVar("traceparent", default=""))
    """The traceparent header of the HTTP request that the current task answers."""
    calls: dict[str, Generation] = field(default_factory=dict)
    """Running HTTP requests by the id that clients abort them with."""
    _serial: int = 0

    @property
    def context(self) -> int:
        """Tokens that one request may have in all: the model's context, or the whole KV pool where that is smaller."""
        ready = self._ready()
        return min(ready.context_length, ready.max_total_tokens)

    def check_model(self, model: str | None) -> None:
        """Raises RequestError (404) for a model that is not served here; none, or `default`, means the served one."""
        if model not in (None, "", "default", self.config.served_model_name, self.config.model_path):
            raise RequestError(
                f"the model `{model}` does not exist; this server has `{self.config.served_model_name}`",
                status=404,
                param="model",
            )

    def generate(
        self, wanted: Sequence[Wanted], rid: str | None = None, *, stream: bool = False, embedding: bool = False
    ) -> Generation:
        """Starts a request. The caller must `close` it. Raises RequestError where the engine cannot take it."""
        if self.phase is not Phase.READY:
            raise Unavailable(f"the server is {self.phase.value}", retry_after_s=1.0)
        self.check_role()
        self.check_embedding(wanted=embedding)
        for item in wanted:
            check_outputs(len(wanted), item.n, MAX_OUTPUTS)
        public = rid or uuid.uuid4().hex
        if public in self.calls:
            raise RequestError(f"a request with the id {public!r} is running", param="rid")
        self._serial += 1
        # A client may use an id again, while the engine's last word on its first use is still on the way.
        unique = f"{public}.{self._serial}"
        interval = self.config.stream_interval if stream else 1
        root = None if self.spans is None else self.spans.begin("request", self.traceparent.get())
        trace = "" if root is None else root.context
        generation = Generation(
            self.client, self.tokenizer, self.metrics, wanted, unique, stream_interval=interval, trace=trace
        )
        if root is not None:
            generation.on_close(lambda: _end_span(root, public, generation))
        self.calls[public] = generation
        generation.on_close(lambda: self._closed(public, generation))
        return generation

    def check_scores(self, prompt_tokens: int, start: int | None, top: int) -> None:
        """Raises RequestError where a prompt's log probabilities would pass what one message may hold."""
        if start is not None and (prompt_tokens - start) * (1 + top) > MAX_SCORES:
            raise RequestError(
                f"log probabilities of {prompt_tokens - start} prompt tokens with {top} alternatives each pass the "
                f"limit of {MAX_SCORES} values a request"
            )

    def check_role(self) -> None:
        """Raises RequestError on a prefill engine, which computes prompts for decode engines only."""
        if self.config.disagg_mode == "prefill":
            raise RequestError("this is a prefill engine; send requests to a decode engine", status=400)

    def check_embedding(self, *, wanted: bool) -> None:
        """Raises RequestError where this engine makes the other of tokens and embeddings."""
        if wanted and not self.config.is_embedding:
            raise RequestError("this engine generates text; embeddings need one that is started with --is-embedding")
        if self.config.is_embedding and not wanted:
            raise RequestError("this engine serves embeddings only (--is-embedding): use /v1/embeddings")

    async def generate_one_token(self, deadline_s: float) -> TokenOut:
        """A real token through the whole engine. Raises RequestError or EngineError when none came."""
        self._serial += 1
        start = (self.tokenizer.end_token_ids or (0,))[0]
        wanted = Wanted((start,), SamplingParams(max_new_tokens=1, temperature=0.0), TextRules())
        return await self.client.one_token(wanted.token_ids, wanted.sampling, f"health.{self._serial}", deadline_s)

    def _ready(self) -> Ready:
        if self.ready is None:
            raise Unavailable("the model is still being loaded", retry_after_s=1.0)
        return self.ready

    def _closed(self, public: str, generation: Generation) -> None:
        self.calls.pop(public, None)
        if self.config.log_requests:
            first = generation.outputs[0]
            _log.info(
                "%s: %d outputs, prompt %d, cached %d, generated %d, %s, %.3f s",
                public,
                len(generation.outputs),
                first.prompt_tokens,
                first.cached_tokens,
                sum(output.completion_tokens for output in generation.outputs),
                first.finish.reason if first.finish else "abort",
                time.perf_counter() - generation.started_at,
            )


def _end_span(root: RootSpan, rid: str, generation: Generation) -> None:
    outputs = generation.outputs
    root.end(
        rid=rid,
        outputs=len(outputs),
        prompt_tokens=outputs[0].prompt_tokens,
        completion_tokens=sum(output.completion_tokens for output in outputs),
    )
