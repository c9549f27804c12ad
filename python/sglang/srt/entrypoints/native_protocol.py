"""Bodies of SGLang's native routes."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from sglang.srt.entrypoints.sampling_fields import MAX_TOP_LOGPROBS, Body, SamplingFields, TokenIds, refuse
from sglang.srt.errors import RequestError

MAX_BATCH = 1024

_UNSUPPORTED = (
    "input_embeds",
    "image_data",
    "audio_data",
    "video_data",
    "lora_path",
    "session_params",
)


class NativeSampling(SamplingFields):
    """`sampling_params` of /generate. Unlike a body's, unknown fields are refused: a misspelt limit must not vanish."""

    model_config = ConfigDict(extra="forbid")

    max_new_tokens: int | None = Field(default=None, ge=0)
    min_new_tokens: int = Field(default=0, ge=0)
    sampling_seed: int | None = None
    spaces_between_special_tokens: bool = True
    stream_interval: int | None = None
    custom_params: dict[str, Any] | None = None

    def check(self) -> None:
        """Raises RequestError for what SGLang has and this engine has not."""
        refuse(
            (
                ("spaces_between_special_tokens", self.spaces_between_special_tokens, (True,)),
                ("stream_interval", self.stream_interval, ()),
                ("custom_params", self.custom_params, ({},)),
            )
        )


class GenerateBody(Body):
    """/generate: one prompt or a batch, as text or as token ids."""

    text: str | Annotated[list[str], Field(fail_fast=True, max_length=MAX_BATCH)] | None = None
    input_ids: TokenIds | Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_BATCH)] | None = None
    sampling_params: NativeSampling | Annotated[list[NativeSampling], Field(max_length=MAX_BATCH)] | None = None
    rid: str | None = Field(default=None, min_length=1, max_length=256)
    stream: bool = False
    return_logprob: bool = False
    logprob_start_len: int | None = Field(default=None, ge=-1)
    top_logprobs_num: int = Field(default=0, ge=0, le=MAX_TOP_LOGPROBS)
    return_text_in_logprobs: bool = False
    priority: int = Field(default=0, ge=-(1 << 31), le=1 << 31)
    input_embeds: Any = None
    image_data: Any = None
    audio_data: Any = None
    video_data: Any = None
    lora_path: Any = None
    token_ids_logprob: Annotated[TokenIds, Field(max_length=1024)] | None = None
    session_params: Any = None
    return_hidden_states: bool = False

    def check(self) -> None:
        """Raises RequestError for what is not supported yet."""
        refuse((name, value, ([],)) for name, value in self if name in _UNSUPPORTED)
        refuse((("return_hidden_states", self.return_hidden_states, (False,)),))

    def starts(self, prompt_tokens: int) -> int | None:
        """The first prompt token whose log probability is shown; None where only the output's are."""
        start = self.logprob_start_len
        if not self.return_logprob or start is None or start < 0:
            return None
        if start >= prompt_tokens:
            raise RequestError(
                f"logprob_start_len: {start} lies behind the prompt of {prompt_tokens} tokens",
                param="logprob_start_len",
            )
        return start


class AbortBody(Body):
    """/abort_request: one request by its id, or all of them."""

    rid: str = ""
    abort_all: bool = False


class PauseBody(Body):
    """/pause_generation."""

    mode: Literal["abort", "in_place", "retract"] = "abort"


class ProfileBody(Body):
    """/start_profile; further fields of SGLang's are ignored."""

    output_dir: str | None = Field(default=None, max_length=4096)


class EncodeBody(Body):
    """/encode: one text or a batch, as text or as token ids."""

    text: str | Annotated[list[str], Field(fail_fast=True, max_length=MAX_BATCH)] | None = None
    input_ids: TokenIds | Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_BATCH)] | None = None
    rid: str | None = Field(default=None, min_length=1, max_length=256)


class TokenizeBody(Body):
    """/tokenize: `prompt` (or `text`), one or several."""

    prompt: str | list[str] | None = None
    text: str | list[str] | None = None
    add_special_tokens: bool = True


class DetokenizeBody(Body):
    """/detokenize: `tokens`, one list or several."""

    tokens: TokenIds | list[TokenIds]
    skip_special_tokens: bool = True
