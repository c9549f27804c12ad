"""Text -> tokens: the model folder's tokenizer, its chat template, and what a prompt must satisfy."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from sglang.srt.constrained.vocabulary import byte_level_alphabet
from sglang.srt.errors import CheckpointError, RequestError
from sglang.srt.managers.chat_template import ChatTemplate, Message
from sglang.srt.managers.model_folder import ModelFolder, read_model_folder
from sglang.srt.managers.tokenizer_files import TokenizerFiles, load_tokenizer_files

OFF_LOOP_CHARACTERS = 8_000
"""Longer texts are encoded in a thread: at about 1 us a character they would stall every stream for 8 ms."""


class ContextLengthError(RequestError):
    """A prompt, alone or with the tokens asked for, does not fit the context."""


class Tokenizer:
    """One model's tokenizer. Encoding and decoding are thread-safe and release the interpreter's lock."""

    def __init__(self, files: TokenizerFiles, folder: ModelFolder, template: ChatTemplate | None) -> None:
        self._coder = files.coder
        self._template = template
        self._byte_of = byte_level_alphabet() if files.byte_level else {}
        self.vocab_size = folder.vocab_size
        self.defaults = folder.defaults
        self.end_token_ids = folder.end_token_ids or files.end_token_ids
        self.token_text: Callable[[int], str] = lru_cache(maxsize=65_536)(self._token_text)
        """The text of one token, special tokens included; U+FFFD where it is part of a character."""

    @classmethod
    def load(
        cls,
        model_path: str,
        tokenizer_path: str,
        *,
        chat_template: str = "",
        trust_remote_code: bool = False,
        overrides: Mapping[str, object] = MappingProxyType({}),
    ) -> "Tokenizer":
        """Reads both folders. `chat_template`: a file or the template itself; empty: the tokenizer's own. `overrides`
        replace fields of the model's config.json.

        Raises CheckpointError that names what is missing or malformed.
        """
        folder = read_model_folder(Path(model_path), overrides)
        files = load_tokenizer_files(Path(tokenizer_path), trust_remote_code=trust_remote_code)
        if files.base_tokens > folder.vocab_size:
            raise CheckpointError(
                f"{tokenizer_path}: the tokenizer's vocabulary of {files.base_tokens} exceeds the model's vocab_size "
                f"{folder.vocab_size}"
            )
        source = _template_source(chat_template) or files.template
        return cls(files, folder, ChatTemplate(source, files.special_tokens) if source else None)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`."""
        return self._coder.encode(text, add_special_tokens)

    async def encode_off_loop(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """`encode`, in a thread where the text is long enough to be felt by other requests."""
        if len(text) < OFF_LOOP_CHARACTERS:
            return self.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self.encode, text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`. Ids that the tokenizer does not know have no text."""
        return self._coder.decode(token_ids, skip_special_tokens)

    def decoder(self, *, skip_special_tokens: bool) -> Callable[[Sequence[int]], str]:
        """`decode` with its option bound, for the detokenizer."""
        decode = self._coder.decode
        return lambda ids: decode(ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes of one token, exact for byte-level vocabularies even inside a character."""
        text = self.token_text(token_id)
        if "\ufffd" in text and self._byte_of:
            piece = self._coder.piece(token_id)
            if piece and all(character in self._byte_of for character in piece):
                return bytes(self._byte_of[character] for character in piece)
        return text.encode()

    def render_chat(self, messages: Sequence[Message], variables: Mapping[str, object], *, continue_final: bool) -> str:
        """The prompt text of a conversation. Raises RequestError where the model has no chat template or refuses it."""
        if self._template is None:
            raise RequestError("this model has no chat template; start the server with --chat-template FILE")
        return self._template.render(messages, continue_final=continue_final, variables=variables)

    def check_ids(self, token_ids: Sequence[int], param: str) -> None:
        """Raises RequestError for an id outside 0 <= id < vocab_size."""
        if token_ids and not (min(token_ids) >= 0 and max(token_ids) < self.vocab_size):
            wrong = next(token for token in token_ids if not 0 <= token < self.vocab_size)
            raise RequestError(f"{param}: token id {wrong} is outside the vocabulary of {self.vocab_size}", param=param)

    def _token_text(self, token_id: int) -> str:
        return self.decode([token_id], skip_special_tokens=False)


def fit(prompt_tokens: int, asked: int | None, limit: int, *, param: str, asked_param: str, clip: bool = False) -> int:
    """How many tokens may be generated after a prompt: `asked`, or all that fit where that is None.

    `limit` is the context in tokens. With `clip` an `asked` that does not fit is cut to what does (SGLang's /generate);
    otherwise, and for an empty or over-long prompt, raises RequestError with the counts.
    """
    if prompt_tokens == 0:
        raise RequestError(f"{param}: the prompt is empty", param=param)
    left = limit - prompt_tokens
    if left < 1:
        raise ContextLengthError(
            f"this model's context is {limit} tokens, but the prompt has {prompt_tokens}; please shorten it",
            param=param,
        )
    if asked is None:
        return left
    if asked > left and not clip:
        raise ContextLengthError(
            f"this model's context is {limit} tokens, but {prompt_tokens + asked} were asked for "
            f"({prompt_tokens} in the prompt, {asked} in the answer); please ask for less",
            param=asked_param,
        )
    return min(asked, left)


def _template_source(chat_template: str) -> str:
    if not chat_template or "{" in chat_template:
        return chat_template
    try:
        return Path(chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"--chat-template: cannot read {chat_template}: {error}") from error
