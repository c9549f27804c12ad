"""Sampling fields that both HTTP dialects spell alike, and their way to `SamplingParams`."""

from collections.abc import Iterable
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from sglang.srt.core.grammar import GrammarSpec
from sglang.srt.core.sampling import SamplingParams
from sglang.srt.entrypoints.grammar_fields import Json, one_grammar
from sglang.srt.errors import RequestError
from sglang.srt.managers.detokenizer import TextRules
from sglang.srt.managers.stop_patterns import compiled
from sglang.srt.managers.tokenizer import Tokenizer

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024
MAX_TOP_LOGPROBS = 20

TokenIds = Annotated[list[int], Field(fail_fast=True)]
"""A wrong element ends validation: a list of a million wrong ones must not become a million error objects."""


class Body(BaseModel):
    """A request body: wrong types are refused, unknown fields ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True)


class SamplingFields(Body):
    """What SGLang and OpenAI name alike, with SGLang's extensions to OpenAI's requests. None: the model's default."""

    temperature: float | None = Field(default=None, ge=0, le=1000)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=1 << 31)
    min_p: float | None = Field(default=None, ge=0, le=1)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=2)
    stop: str | Annotated[list[str], Field(fail_fast=True, max_length=MAX_STOPS)] | None = None
    stop_regex: str | Annotated[list[str], Field(fail_fast=True, max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[TokenIds, Field(max_length=1024)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    logit_bias: dict[str, float] | None = Field(default=None, max_length=1024)
    n: int | None = Field(default=None, ge=1, le=128)
    json_schema: Json | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: Json | None = None

    @property
    def copies(self) -> int:
        """How many outputs a prompt gets."""
        return self.n or 1

    def grammar(self) -> GrammarSpec | None:
        """What the output must match. Raises RequestError where several fields say so."""
        return one_grammar(
            {
                "json_schema": self.json_schema,
                "regex": self.regex,
                "ebnf": self.ebnf,
                "structural_tag": self.structural_tag,
            }
        )

    def rules(self, min_new_tokens: int) -> TextRules:
        """How the text is cut. Raises RequestError for a stop string that is too long."""
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if any(len(stop) > MAX_STOP_LENGTH for stop in stops):
            raise RequestError(f"stop: a stop string may have {MAX_STOP_LENGTH} characters", param="stop")
        return TextRules(
            stop=tuple(stop for stop in stops if stop),
            stop_regex=self._patterns(),
            no_stop_trim=bool(self.no_stop_trim),
            skip_special_tokens=self.skip_special_tokens is not False,
            min_new_tokens=min_new_tokens,
        )

    def _patterns(self) -> tuple[str, ...]:
        patterns = (self.stop_regex,) if isinstance(self.stop_regex, str) else tuple(self.stop_regex or ())
        for pattern in patterns:
            compiled(pattern)
        return tuple(pattern for pattern in patterns if pattern)

    def sampling(
        self,
        tokenizer: Tokenizer,
        *,
        max_new_tokens: int,
        min_new_tokens: int,
        seed: int | None,
        top_logprobs: int | None,
    ) -> SamplingParams:
        """Completed with the model's defaults. `top_logprobs` None: no logprobs. Raises RequestError for wrong ids."""
        if min_new_tokens > max_new_tokens:
            raise RequestError(f"at least {min_new_tokens} tokens cannot go with at most {max_new_tokens}")
        ends = tuple(self.stop_token_ids or ())
        tokenizer.check_ids(ends, "stop_token_ids")
        if not self.ignore_eos:
            ends += tokenizer.end_token_ids
        defaults = tokenizer.defaults
        return SamplingParams(
            max_new_tokens=max_new_tokens,
            min_new_tokens=min_new_tokens,
            temperature=_first(self.temperature, defaults.temperature),
            top_p=_first(self.top_p, defaults.top_p),
            top_k=_first(self.top_k, defaults.top_k) or -1,
            min_p=_first(self.min_p, defaults.min_p),
            frequency_penalty=self.frequency_penalty or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            repetition_penalty=_first(self.repetition_penalty, defaults.repetition_penalty),
            logit_bias=self._bias(tokenizer),
            grammar=self.grammar(),
            stop_token_ids=tuple(sorted(set(ends))),
            seed=None if seed is None else seed & ((1 << 63) - 1),
            logprobs=top_logprobs is not None,
            top_logprobs=top_logprobs or 0,
        )

    def _bias(self, tokenizer: Tokenizer) -> tuple[tuple[int, float], ...]:
        bias = []
        for key, value in (self.logit_bias or {}).items():
            if not (key.isascii() and key.isdigit() and len(key) < 12):
                raise RequestError(f"logit_bias: {key[:40]!r} is not a token id", param="logit_bias")
            if not -100 <= value <= 100:
                raise RequestError(f"logit_bias: {value:g} is outside -100..100", param="logit_bias")
            bias.append((int(key), value))
        tokenizer.check_ids([token for token, _ in bias], "logit_bias")
        return tuple(bias)


def refuse(fields: Iterable[tuple[str, object, tuple[object, ...]]]) -> None:
    """Raises RequestError for the first (name, value, neutral values) whose value asks for what is not supported."""
    for name, value, neutral in fields:
        if value is not None and value not in neutral:
            raise RequestError(f"{name} is not supported yet", param=name)


_Number = TypeVar("_Number", int, float)


def _first(value: _Number | None, default: _Number) -> _Number:
    return default if value is None else value
