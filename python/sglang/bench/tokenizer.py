"""The tokenizer as a benchmark needs it: how many tokens will the server count in this text?"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from sglang.srt.errors import ConfigError


class BenchTokenizer:
    """Counts tokens as a server does that adds the model's own special tokens (BOS and the like) to a prompt."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.ordinary_ids: tuple[int, ...] = tuple(sorted(set(tokenizer.get_vocab().values()) - set(added)))
        """Token ids that stand for text."""

    def count(self, text: str) -> int:
        """Tokens of `text`, special tokens included."""
        return len(self._tokenizer.encode(text).ids)

    def count_all(self, texts: Sequence[str]) -> list[int]:
        """`count` of each text."""
        return [len(encoding.ids) for encoding in self._tokenizer.encode_batch(list(texts))]

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The text of each id on its own."""
        return self._tokenizer.decode_batch([[i] for i in ids])


def load_tokenizer(path: str) -> BenchTokenizer:
    """The tokenizer of a model folder. Raises ConfigError where there is none.

    `tokenizer.json` is read directly: importing transformers costs seconds. Other formats go through transformers.
    """
    file = Path(path) / "tokenizer.json"
    if file.is_file():
        return BenchTokenizer(Tokenizer.from_file(str(file)))
    return BenchTokenizer(_transformers_tokenizer(path).backend_tokenizer)


def _transformers_tokenizer(path: str) -> Any:  # noqa: ANN401 - transformers names no type that all tokenizers share
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--tokenizer {path}: no tokenizer there ({error})") from error


def apply_chat_template(path: str, texts: Sequence[str]) -> list[str]:
    """Each text as the only user message of a conversation, in the model's own template.

    Raises ConfigError where the model has no template.
    """
    tokenizer = _transformers_tokenizer(path)
    try:
        return [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
            )
            for text in texts
        ]
    except ValueError as error:
        raise ConfigError(f"--apply-chat-template: {path} has no usable template ({error})") from error
