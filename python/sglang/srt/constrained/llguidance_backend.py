"""The llguidance backend. Its limits are its own: fuel for the lexer, items a step, symbols of a grammar."""

import llguidance
from llguidance.gbnf_to_lark import any_to_lark
from tokenizers import Tokenizer as Rust

from sglang.srt.constrained.base import Bits, GrammarError, bits_of, end_bits
from sglang.srt.constrained.limits import GrammarLimits
from sglang.srt.constrained.structural_lark import structural_lark
from sglang.srt.constrained.vocabulary import Vocabulary
from sglang.srt.core.grammar import GrammarSpec

WHITESPACE = r"[\x20\x0A\x0D\x09]{1,20}"
"""Bounded for the reason that xgrammar_compiler.MAX_WHITESPACE gives."""
COMPACT: dict[str, str | bool] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
MAX_GRAMMAR_SYMBOLS = 100_000
BYTES_A_CHARACTER = 64
"""A matcher's states grow with the grammar's text; the library does not say by how much, so this is an estimate."""


class _Spelling:
    """The vocabulary in the form that LLTokenizer asks for."""

    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.end[0]
        self.bos_token_id = None
        special = {*vocabulary.special, *vocabulary.end}
        # Special tokens need distinct names; the list of their ids keeps them out of every text.
        self.tokens = [
            f"<|{number}|>".encode() if number in special else token for number, token in enumerate(vocabulary.tokens)
        ]
        self.special_token_ids = sorted(special)

        self._coder = Rust.from_file(vocabulary.file)

    def __call__(self, text: bytes) -> list[int]:
        """How the model spells text that the grammar leaves no choice about."""
        return list(self._coder.encode(text.decode(errors="replace"), add_special_tokens=False).ids)


class LLGuidanceMatcher:
    """A GrammarMatcher. The library never sees an end token: it would take any number of them."""

    def __init__(self, prototype: llguidance.LLMatcher, end: Bits) -> None:
        self._inner = prototype.deep_copy()
        self._end = end
        self._terminated = False

    @property
    def terminated(self) -> bool:
        return self._terminated

    def fill(self, bits: Bits) -> None:
        if self._terminated:
            bits[:] = self._end
        else:
            self._inner.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)

    def accept(self, token: int) -> bool:
        if self._terminated:
            return False
        if self._end[token // 32] >> token % 32 & 1:
            self._terminated = self._inner.is_accepting()
            return self._terminated
        # After a token that it refuses the library would stay in error, so it is asked first.
        return self._inner.validate_tokens([token]) == 1 and self._inner.consume_token(token)

    def rollback(self, count: int) -> None:
        ended = self._terminated and count > 0
        if ended:
            self._terminated = False
        if count > ended:
            self._inner.rollback(count - ended)


class LLGuidanceCompiled:
    """A CompiledGrammar: a matcher at the start, of which each output gets a copy that shares its lexer."""

    def __init__(self, prototype: llguidance.LLMatcher, text: str, end: Bits) -> None:
        self._prototype = prototype
        self._end = end
        self.nbytes = len(text) * BYTES_A_CHARACTER

    def matcher(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self._prototype, self._end)


class LLGuidanceBackend:
    """A GrammarBackend."""

    def __init__(self, vocabulary: Vocabulary, limits: GrammarLimits, *, whitespace: bool) -> None:
        self._size = vocabulary.size
        self._end = end_bits(vocabulary)
        self._json: dict[str, str | bool] = {"whitespace_pattern": WHITESPACE} if whitespace else dict(COMPACT)
        self._limits = llguidance.LLParserLimits(max_grammar_size=MAX_GRAMMAR_SYMBOLS, verbose_errors=False)
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Spelling(vocabulary)), n_vocab=vocabulary.size, eos_token=list(vocabulary.end)
        )

    def compile(self, spec: GrammarSpec) -> LLGuidanceCompiled:
        try:
            text = self._translate(spec)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise GrammarError(f"{spec.kind}: {error}") from error
        matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0, limits=self._limits)
        bits = bits_of(self._size)
        if not matcher.is_error():
            matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if matcher.is_error():
            raise GrammarError(f"{spec.kind}: {' '.join(matcher.get_error().split())[:500]}")
        if not bits.any():
            raise GrammarError(f"{spec.kind}: no output can satisfy it")
        return LLGuidanceCompiled(matcher, text, self._end)

    def _translate(self, spec: GrammarSpec) -> str:
        """The library's own notation."""
        library = llguidance.LLMatcher
        match spec.kind:
            case "json_object" | "json_schema":
                schema = spec.text if spec.kind == "json_schema" else '{"type": "object"}'
                # The type of the options is declared in the library's stubs alone, so it cannot be named here.
                return str(library.grammar_from_json_schema(schema, overrides=self._json))  # type: ignore[arg-type]
            case "regex":
                return str(library.grammar_from_regex(spec.text))
            case "ebnf":
                return str(library.grammar_from_lark(_lark_of(spec.text)))
            case "structural_tag":
                return str(library.grammar_from_lark(structural_lark(spec.text)))

    def close(self) -> None:
        """Nothing of it outlives a call."""


def _lark_of(rules: str) -> str:
    try:
        return str(any_to_lark(rules))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(error) from error
