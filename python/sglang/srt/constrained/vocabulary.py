"""What each token spells, as grammar libraries need it. Torch-free."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from tokenizers import Tokenizer as Rust

from sglang.srt.errors import CheckpointError

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a model. Ids beyond the tokenizer's (padding of the embedding) spell nothing."""

    tokens: tuple[bytes, ...]
    """Bytes of each token; empty for special tokens, which no grammar may produce."""
    special: tuple[int, ...]
    end: tuple[int, ...]
    """Tokens that end an output."""
    file: str
    """The tokenizer.json that it was read from."""

    @property
    def size(self) -> int:
        """Columns of the logits."""
        return len(self.tokens)


def byte_level_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable bytes stand for themselves, the rest follow from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def load_vocabulary(folder: Path, size: int, end: Sequence[int]) -> Vocabulary:
    """Reads `folder`/tokenizer.json. `size`: the model's; `end`: its end tokens.

    Raises CheckpointError where the file is missing or cannot be read.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise CheckpointError(f"structured output needs {file}")
    try:
        inner = Rust.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{file}: {error}") from error
    spell = _speller("ByteLevel" in repr(inner.decoder))
    tokens = [b""] * size
    for piece, number in inner.get_vocab(with_added_tokens=True).items():
        if number < size:
            tokens[number] = spell(piece)
    special = []
    for number, added in inner.get_added_tokens_decoder().items():
        if number < size:
            tokens[number] = b"" if added.special else added.content.encode()
            special += [number] if added.special else []
    return Vocabulary(tokens=tuple(tokens), special=tuple(sorted(special)), end=tuple(end), file=str(file))


def _speller(byte_level: bool) -> Callable[[str], bytes]:
    if not byte_level:
        return _sentencepiece
    alphabet = byte_level_alphabet()

    def spell(piece: str) -> bytes:
        if all(character in alphabet for character in piece):
            return bytes(alphabet[character] for character in piece)
        return piece.encode()

    return spell


def _sentencepiece(piece: str) -> bytes:
    match = _BYTE_PIECE.fullmatch(piece)
    return bytes((int(match[1], 16),)) if match else piece.replace("\u2581", " ").encode()
