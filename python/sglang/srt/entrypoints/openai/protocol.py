"""Bodies of OpenAI's routes: what is asked and what is answered."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from sglang.srt.core.grammar import GrammarSpec
from sglang.srt.entrypoints.grammar_fields import ResponseFormat
from sglang.srt.entrypoints.openai.tools import MAX_TOOLS, Tool, ToolCall, ToolChoice
from sglang.srt.entrypoints.sampling_fields import MAX_TOP_LOGPROBS, Body, SamplingFields, TokenIds, refuse
from sglang.srt.errors import RequestError

MAX_BATCH = 1024
MAX_MESSAGES = 4096

_UNSUPPORTED = (
    "lora_path",
    "guided_json",
    "guided_regex",
)


class StreamOptions(Body):
    """What a stream reports besides text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class OpenAIFields(SamplingFields):
    """What completions and chat share."""

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=0)
    min_tokens: int = Field(default=0, ge=0)
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    rid: str | None = Field(default=None, min_length=1, max_length=256)
    priority: int = Field(default=0, ge=-(1 << 31), le=1 << 31)
    response_format: ResponseFormat | None = None
    lora_path: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    return_hidden_states: bool | None = None

    def grammar(self) -> GrammarSpec | None:
        """SGLang's fields or `response_format`. Raises RequestError for more than one."""
        own = super().grammar()
        asked = self.response_format.grammar() if self.response_format else None
        if own is not None and asked is not None:
            raise RequestError(f"response_format, {own.kind}: an output can have one grammar", param="response_format")
        return own if asked is None else asked

    def check_supported(self) -> None:
        """Raises RequestError for what is not supported yet."""
        refuse((name, value, ()) for name, value in self if name in _UNSUPPORTED)
        refuse((("return_hidden_states", self.return_hidden_states, (False,)),))


class CompletionBody(OpenAIFields):
    """/v1/completions."""

    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(fail_fast=True, max_length=MAX_BATCH)]
        | Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_BATCH)]
    )
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    suffix: Any = None
    best_of: int | None = None

    def check(self) -> None:
        """Raises RequestError for what is not supported yet."""
        self.check_supported()
        refuse((("suffix", self.suffix, ("",)), ("best_of", self.best_of, (1, self.copies))))


class ContentPart(BaseModel):
    """A piece of a message's content."""

    model_config = ConfigDict(strict=True, extra="allow")
    type: str
    text: str | None = None


class ChatMessage(BaseModel):
    """One message; further fields reach the chat template as they are."""

    model_config = ConfigDict(strict=True, extra="allow")
    role: str = Field(min_length=1, max_length=64)
    content: str | list[ContentPart] | None = None


class ChatBody(OpenAIFields):
    """/v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: int | None = Field(default=None, ge=0)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool = False
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    separate_reasoning: bool | None = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    chat_template: Any = None

    def check(self) -> None:
        """Raises RequestError for what is not supported yet."""
        self.check_supported()
        refuse(
            (
                ("functions", self.functions, ([],)),
                ("function_call", self.function_call, ("none", "auto")),
                ("modalities", self.modalities, (["text"],)),
                ("audio", self.audio, ()),
                ("chat_template", self.chat_template, ()),
            )
        )


class PromptTokensDetails(BaseModel):
    """Where prompt tokens came from."""

    cached_tokens: int


class Usage(BaseModel):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


class CompletionLogprobs(BaseModel):
    """Log probabilities in the form of /v1/completions."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    """The first token of an echoed prompt has none."""
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None] | None


class CompletionChoice(BaseModel):
    """One output of /v1/completions."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None
    matched_stop: str | int | None = None


class CompletionAnswer(BaseModel):
    """/v1/completions without streaming."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class TopLogprob(BaseModel):
    """An alternative to a token."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token with its alternatives."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log probabilities in the form of /v1/chat/completions."""

    content: list[TokenLogprob]
    refusal: None = None


class AssistantMessage(BaseModel):
    """The model's answer."""

    role: str = "assistant"
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    refusal: None = None


class ChatChoice(BaseModel):
    """One output of /v1/chat/completions."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None
    matched_stop: str | int | None = None


class ChatAnswer(BaseModel):
    """/v1/chat/completions without streaming."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: None = None


class ModelCard(BaseModel):
    """A served model."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "sglang"
    root: str
    max_model_len: int | None


class ModelList(BaseModel):
    """/v1/models."""

    object: str = "list"
    data: list[ModelCard]
