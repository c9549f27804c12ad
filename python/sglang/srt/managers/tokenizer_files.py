"""Loads the tokenizer of a folder: directly where its files say all, otherwise through transformers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer as Rust

from sglang.srt.errors import CheckpointError

_PLAIN_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes that add nothing to tokenizer.json."""
_ADJUSTMENTS = ("add_bos_token", "add_eos_token", "add_prefix_space", "auto_map")
"""Settings with which transformers changes what tokenizer.json says."""
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Coder(Protocol):
    """Text to ids and back."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Text of `ids`, without clean-up of spaces."""
        ...

    def piece(self, token_id: int) -> str:
        """The vocabulary's own spelling of a token; empty for an unknown id."""
        ...


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A loaded tokenizer and what its folder says around it."""

    coder: Coder
    byte_level: bool
    """Whether pieces spell bytes in the byte-level alphabet."""
    special_tokens: dict[str, str]
    end_token_ids: tuple[int, ...]
    template: str
    """The chat template; may be empty."""
    base_tokens: int
    """Tokens of the vocabulary itself. Tokens added to it may lie beyond the model's (Gemma 3 has one for images)."""


def load_tokenizer_files(path: Path, *, trust_remote_code: bool) -> TokenizerFiles:
    """Raises CheckpointError that names what is missing or malformed.

    Loading tokenizer.json directly takes 0.2 s of CPU; importing transformers, and torch with it, takes 4 s.
    """
    if not path.is_dir():
        raise CheckpointError(f"--tokenizer-path: no folder {path}")
    settings = _settings(path)
    plain = settings.get("tokenizer_class") in _PLAIN_CLASSES and not any(settings.get(key) for key in _ADJUSTMENTS)
    if plain and (path / "tokenizer.json").is_file():
        return _direct(path, settings)
    return _through_transformers(path, trust_remote_code)


class _RustCoder:
    def __init__(self, inner: Rust) -> None:
        self._inner = inner

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._inner.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return str(self._inner.decode(ids, skip_special_tokens=skip_special_tokens))

    def piece(self, token_id: int) -> str:
        return self._inner.id_to_token(token_id) or ""


class _PythonCoder:
    def __init__(self, inner: Any) -> None:  # noqa: ANN401
        self._inner = inner

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return list(self._inner.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        options = {"skip_special_tokens": skip_special_tokens, "clean_up_tokenization_spaces": False}
        return str(self._inner.decode(list(ids), **options))

    def piece(self, token_id: int) -> str:
        return str(self._inner.convert_ids_to_tokens(token_id) or "")


def _direct(path: Path, settings: dict[str, Any]) -> TokenizerFiles:
    try:
        inner = Rust.from_file(str(path / "tokenizer.json"))
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{path}: tokenizer.json: {error}") from error
    # Files may carry what training used; prompts are cut nowhere and padded nowhere.
    inner.no_truncation()
    inner.no_padding()
    special = {name: _content(settings[name]) for name in _SPECIAL if settings.get(name)}
    end = inner.token_to_id(special["eos_token"]) if "eos_token" in special else None
    file = path / "chat_template.jinja"
    template = file.read_text(encoding="utf-8") if file.is_file() else _default(settings.get("chat_template"))
    ends = () if end is None else (end,)
    base = int(inner.get_vocab_size(with_added_tokens=False))
    return TokenizerFiles(_RustCoder(inner), _is_byte_level(inner), special, ends, template, base)


def _through_transformers(path: Path, trust_remote_code: bool) -> TokenizerFiles:
    from transformers import AutoTokenizer

    try:
        inner: Any = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise CheckpointError(f"{path}: tokenizer: {' '.join(str(error).split())[:300]}") from error
    rust = inner.backend_tokenizer if inner.is_fast else None
    return TokenizerFiles(
        coder=_PythonCoder(inner) if rust is None else _RustCoder(rust),
        byte_level=rust is not None and _is_byte_level(rust),
        special_tokens={name: str(token) for name, token in inner.special_tokens_map.items()},
        end_token_ids=() if inner.eos_token_id is None else (int(inner.eos_token_id),),
        template=_default(inner.chat_template),
        base_tokens=int(inner.vocab_size),
    )


def _settings(path: Path) -> dict[str, Any]:
    file = path / "tokenizer_config.json"
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: must hold a JSON object")
    return content


def _content(token: Any) -> str:  # noqa: ANN401
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _default(template: Any) -> str:  # noqa: ANN401
    if isinstance(template, list):  # [{"name": ..., "template": ...}]
        template = {item["name"]: item["template"] for item in template}
    if isinstance(template, dict):
        template = template.get("default")
    return str(template or "")


def _is_byte_level(inner: Rust) -> bool:
    return "ByteLevel" in repr(inner.decoder)
