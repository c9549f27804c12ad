"""Texts of an exact token length.

Decoding random ids and encoding the text again gives another number of tokens: neighbours merge. Here a text is made of
words that are one token each, wherever they stand, joined by spaces; the whole text is counted before it is used.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from sglang.bench.tokenizer import BenchTokenizer
from sglang.srt.errors import ConfigError

ANCHOR = "a"
"""What a word is tried behind."""


class WordPool:
    """Words that cost one token each under one tokenizer."""

    def __init__(self, tokenizer: BenchTokenizer, candidates: Iterable[str] = ()) -> None:
        """Take the pool from `candidates`, or from the whole vocabulary. Raises ConfigError where nothing is left."""
        self._tokenizer = tokenizer
        self._special = tokenizer.count("")
        words = sorted(set(_words(candidates or tokenizer.pieces(tokenizer.ordinary_ids))))
        anchor = tokenizer.count(ANCHOR)
        alone = tokenizer.count_all(words)
        behind = tokenizer.count_all([f"{ANCHOR} {word}" for word in words])
        single = {word for word, count in zip(words, alone, strict=True) if count == self._special + 1}
        self._next = [word for word, count in zip(words, behind, strict=True) if count == anchor + 1]
        self._first = [word for word in self._next if word in single]
        if not self._first:
            raise ConfigError("this tokenizer has no words of one token; use --dataset-name random-ids")

    def draw(self, rng: np.random.Generator, count: int) -> list[str]:
        """`count` random words; the first of them may begin a text or continue one."""
        first = [self._first[int(i)] for i in rng.integers(len(self._first), size=min(count, 1))]
        return first + self.continue_(rng, count - len(first))

    def continue_(self, rng: np.random.Generator, count: int) -> list[str]:
        """`count` random words to follow others."""
        return [self._next[int(i)] for i in rng.integers(len(self._next), size=count)]

    def text(self, words: Sequence[str], tokens: int) -> str:
        """The words as a text of exactly `tokens` tokens, cut to fit. Raises ConfigError where that cannot be."""
        wanted = tokens - self._special
        if wanted < 1:
            raise ConfigError(f"a prompt of {tokens} tokens is impossible: the tokenizer itself adds {self._special}")
        text = " ".join(words[:wanted])
        count = self._tokenizer.count(text)
        if count != tokens:
            raise ConfigError(f"made a text of {count} tokens instead of {tokens}; use --dataset-name random-ids")
        return text


def _words(pieces: Iterable[str]) -> Iterable[str]:
    for piece in pieces:
        word = piece.strip()
        if len(word) > 1 and word.isascii() and word.isalpha():
            yield word
