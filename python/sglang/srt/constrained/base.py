"""The seam between grammar libraries and the engine; `check_grammar_backend` in test/conformance holds both to it."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sglang.srt.constrained.vocabulary import Vocabulary
from sglang.srt.core.grammar import GrammarSpec
from sglang.srt.errors import RequestError

Bits = NDArray[np.int32]
"""`[ceil(vocab / 32)]`: bit i % 32 of word i // 32 says whether token i is allowed."""


class GrammarError(RequestError):
    """A grammar is wrong, or passes a limit; the message says which."""


class GrammarMatcher(Protocol):
    """Where one output stands in its grammar."""

    @property
    def terminated(self) -> bool:
        """Whether an end token was accepted: nothing may follow."""
        ...

    def fill(self, bits: Bits) -> None:
        """Write which tokens may come next; once the grammar is complete and nothing can follow, end tokens alone."""
        ...

    def accept(self, token: int) -> bool:
        """Advance by a token; False, and no change, where the grammar does not allow it."""
        ...

    def rollback(self, count: int) -> None:
        """Forget the last `count` accepted tokens."""
        ...


class CompiledGrammar(Protocol):
    """A grammar ready for use by any number of outputs."""

    @property
    def nbytes(self) -> int:
        """Approximate memory."""
        ...

    def matcher(self) -> GrammarMatcher:
        """A matcher at the grammar's start."""
        ...


class GrammarBackend(Protocol):
    """A grammar library over one vocabulary. Thread-safe."""

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """Takes its time, within the limits; raises GrammarError."""
        ...

    def close(self) -> None:
        """End helpers; a compilation that runs ends with GrammarError. Idempotent."""
        ...


def bits_of(vocab_size: int) -> Bits:
    """Zeroed bits for a vocabulary."""
    return np.zeros(-(-vocab_size // 32), dtype=np.int32)


def end_bits(vocabulary: Vocabulary) -> Bits:
    """Bits of the end tokens alone. Raises GrammarError where there are none: nothing could end an output."""
    if not vocabulary.end:
        raise GrammarError("this model has no end token, which structured output needs")
    bits = np.zeros(-(-vocabulary.size // 32), dtype=np.uint32)
    for token in vocabulary.end:
        bits[token // 32] |= np.uint32(1 << token % 32)
    return bits.view(np.int32)
