"""The request and response formats that the client speaks: native /generate, OpenAI completions, OpenAI chat."""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from sglang.bench.dataset import Prompt
from sglang.srt.errors import ConfigError

Backend = Literal["sglang", "sglang-oai", "sglang-oai-chat", "vllm", "vllm-chat"]


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """What all requests of a run have in common."""

    model: str = ""
    stream: bool = True
    ignore_eos: bool = True
    return_logprob: bool = False
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Merged into each body last."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What one event, or one whole answer, says."""

    text: str = ""
    """New text; or, where `cumulative`, all text so far."""
    cumulative: bool = False
    completion_tokens: int | None = None
    """Output tokens so far, where the server says so."""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None


class Dialect(Protocol):
    """How one endpoint is spoken to."""

    path: str

    def payload(self, prompt: Prompt, settings: RequestSettings) -> dict[str, Any]:
        """The request's body. Raises ConfigError for a prompt that this endpoint cannot take."""

    def read(self, event: dict[str, Any]) -> Delta:
        """The meaning of one event or answer. Raises KeyError, TypeError, IndexError, AttributeError if malformed."""


class NativeDialect:
    """SGLang's /generate: cumulative text, token counts in every event."""

    path = "/generate"

    def payload(self, prompt: Prompt, settings: RequestSettings) -> dict[str, Any]:
        """See Dialect."""
        sampling = {"temperature": 0.0, "max_new_tokens": prompt.output_len, "ignore_eos": settings.ignore_eos}
        body: dict[str, Any] = {"sampling_params": sampling, "stream": settings.stream}
        if prompt.token_ids is not None:
            body["input_ids"] = list(prompt.token_ids)
        else:
            body["text"] = prompt.text
        if settings.return_logprob:
            body["return_logprob"] = True
        return body | settings.extra_body

    def read(self, event: dict[str, Any]) -> Delta:
        """See Dialect."""
        meta = event["meta_info"]
        finish = meta.get("finish_reason")
        return Delta(
            text=event.get("text") or "",
            cumulative=True,
            completion_tokens=meta.get("completion_tokens"),
            prompt_tokens=meta.get("prompt_tokens"),
            cached_tokens=meta.get("cached_tokens"),
            finish_reason=finish["type"] if isinstance(finish, dict) else finish,
        )


class CompletionsDialect:
    """OpenAI's /v1/completions."""

    path = "/v1/completions"

    def __init__(self, counts_in_events: bool = False) -> None:
        """`counts_in_events` asks for the token count in every event, which vLLM offers beyond OpenAI's protocol.

        Tokens without text, such as half a character, are then seen when they come, as they are on /generate.
        """
        self._counts_in_events = counts_in_events

    def payload(self, prompt: Prompt, settings: RequestSettings) -> dict[str, Any]:
        """See Dialect."""
        content = prompt.text if prompt.token_ids is None else list(prompt.token_ids)
        body = _openai_body(prompt, settings) | {"prompt": content}
        if settings.return_logprob:
            body["logprobs"] = 1
        if settings.stream and self._counts_in_events:
            body["stream_options"]["continuous_usage_stats"] = True
        return body | settings.extra_body

    def read(self, event: dict[str, Any]) -> Delta:
        """See Dialect."""
        text, finish = "", None
        if event["choices"]:
            choice = event["choices"][0]
            text, finish = choice.get("text") or "", choice.get("finish_reason")
        return _with_usage(event, text, finish)


class ChatDialect:
    """OpenAI's /v1/chat/completions; the prompt is one user message, to which the server adds its template."""

    path = "/v1/chat/completions"

    def payload(self, prompt: Prompt, settings: RequestSettings) -> dict[str, Any]:
        """See Dialect."""
        if prompt.token_ids is not None:
            raise ConfigError("--dataset-name random-ids sends token ids, which a chat backend cannot take: use random")
        body = _openai_body(prompt, settings) | {"messages": [{"role": "user", "content": prompt.text}]}
        if settings.return_logprob:
            body["logprobs"] = True
        return body | settings.extra_body

    def read(self, event: dict[str, Any]) -> Delta:
        """See Dialect."""
        text, finish = "", None
        if event["choices"]:
            choice = event["choices"][0]
            message = choice.get("delta") or choice.get("message") or {}
            text = (message.get("reasoning_content") or "") + (message.get("content") or "")
            finish = choice.get("finish_reason")
        return _with_usage(event, text, finish)


def _openai_body(prompt: Prompt, settings: RequestSettings) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": settings.model,
        "max_tokens": prompt.output_len,
        "temperature": 0.0,
        "ignore_eos": settings.ignore_eos,
        "stream": settings.stream,
    }
    if settings.stream:
        body["stream_options"] = {"include_usage": True}
    return body


def _with_usage(event: dict[str, Any], text: str, finish: str | None) -> Delta:
    usage = event.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return Delta(
        text=text,
        completion_tokens=usage.get("completion_tokens"),
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=details.get("cached_tokens"),
        finish_reason=finish,
    )


def dialect_of(backend: Backend) -> Dialect:
    """The dialect of a --backend."""
    dialects: dict[Backend, Dialect] = {
        "sglang": NativeDialect(),
        "sglang-oai": CompletionsDialect(),
        "sglang-oai-chat": ChatDialect(),
        "vllm": CompletionsDialect(counts_in_events=True),
        "vllm-chat": ChatDialect(),
    }
    return dialects[backend]
