"""xgrammar behind the seam: compilation in this thread, without any limit of its own."""

import re
import warnings

import xgrammar

from sglang.srt.constrained.base import Bits, GrammarError, bits_of, end_bits
from sglang.srt.constrained.vocabulary import Vocabulary
from sglang.srt.core.grammar import GrammarSpec

MAX_WHITESPACE = 20
"""Characters of whitespace between two elements of JSON. Unbounded, small models indent until their last token."""
_WHERE = re.compile(r"^\[\d\d:\d\d:\d\d\] \S+?:\d+: (?:Check failed: \(.*?\) is (?:true|false): )?")
"""Time and source line before the library's messages: no business of a client's."""


class XGrammarMatcher:
    """A GrammarMatcher."""

    def __init__(self, compiled: xgrammar.CompiledGrammar, end: Bits) -> None:
        self._inner = xgrammar.GrammarMatcher(compiled)
        self._end = end

    @property
    def terminated(self) -> bool:
        return bool(self._inner.is_terminated())

    def fill(self, bits: Bits) -> None:
        if self.terminated:
            bits[:] = self._end
        else:
            self._inner.fill_next_token_bitmask(bits.reshape(1, -1))

    def accept(self, token: int) -> bool:
        return not self.terminated and bool(self._inner.accept_token(token))

    def rollback(self, count: int) -> None:
        self._inner.rollback(count)


class XGrammarCompiled:
    """A CompiledGrammar."""

    def __init__(self, inner: xgrammar.CompiledGrammar, end: Bits) -> None:
        self._inner = inner
        self._end = end

    @property
    def nbytes(self) -> int:
        return int(self._inner.memory_size_bytes)

    def matcher(self) -> XGrammarMatcher:
        return XGrammarMatcher(self._inner, self._end)


class XGrammarCompiler:
    """Compiles over one vocabulary. Thread-safe; the library lets go of the interpreter's lock."""

    def __init__(self, vocabulary: Vocabulary, *, whitespace: bool) -> None:
        """`whitespace`: JSON may have any (bounded) whitespace; otherwise it has json.dumps's."""
        self._whitespace = whitespace
        self._size = vocabulary.size
        info = xgrammar.TokenizerInfo(
            list(vocabulary.tokens),
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=list(vocabulary.end),
        )
        # One thread a compilation: the service runs several, and the model's threads need the cores.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._end = end_bits(vocabulary)

    def compile(self, spec: GrammarSpec) -> XGrammarCompiled:
        """Raises GrammarError for a grammar that is wrong or that no output can satisfy."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compiled = XGrammarCompiled(self._compile(spec), self._end)
        except (RuntimeError, ValueError, TypeError, RecursionError) as error:
            raise GrammarError(f"{spec.kind}: {_plain(error)}") from error
        bits = bits_of(self._size)
        compiled.matcher().fill(bits)
        if not bits.any():
            raise GrammarError(f"{spec.kind}: no output can satisfy it")
        return compiled

    def _compile(self, spec: GrammarSpec) -> xgrammar.CompiledGrammar:
        match spec.kind:
            case "json_object":
                return self._json('{"type": "object"}', strict=False)
            case "json_schema":
                return self._json(spec.text, strict=True)
            case "regex":
                return self._compiler.compile_regex(spec.text)
            case "ebnf":
                return self._compiler.compile_grammar(spec.text)
            case "structural_tag":
                return self._compiler.compile_structural_tag(spec.text)

    def _json(self, schema: str, *, strict: bool) -> xgrammar.CompiledGrammar:
        return self._compiler.compile_json_schema(
            schema,
            any_whitespace=self._whitespace,
            strict_mode=strict,
            max_whitespace_cnt=MAX_WHITESPACE if self._whitespace else None,
        )


def _plain(error: Exception) -> str:
    text = " ".join(_WHERE.sub("", str(error)).split())
    return text[:500] or type(error).__name__
