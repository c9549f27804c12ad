"""The grammar backends over the demo model's vocabulary, and what each must do."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sglang.srt.constrained.base import CompiledGrammar, GrammarBackend, GrammarError, GrammarMatcher, bits_of
from sglang.srt.constrained.vocabulary import Vocabulary
from sglang.srt.core.grammar import GrammarKind, GrammarSpec

MODEL = Path(__file__).resolve().parents[2] / "models" / "SmolLM2-135M-Instruct"
END = 2

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer"},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
CALL = {
    "type": "tag",
    "begin": '<call>{"n":',
    "content": {"type": "json_schema", "json_schema": {"type": "integer"}},
    "end": "}</call>",
}


def tag(form: dict[str, object]) -> str:
    return json.dumps({"type": "structural_tag", "format": form})


ACCEPTED: list[tuple[GrammarKind, str, str]] = [
    ("json_object", "", '{"a": [1, 2.5, null, "x"], "b": {"c": true}}'),
    ("json_schema", json.dumps(PERSON), '{"name": "Zo\u00eb", "age": 7, "kind": "b"}'),
    ("json_schema", '{"enum": ["red", "blue"]}', '"blue"'),
    ("regex", r"[a-f]{3}-\d{2}", "abf-42"),
    ("regex", r"(\u4e16\u754c|\U0001f30d)+", "\u4e16\u754c\U0001f30d"),
    ("ebnf", 'root ::= "yes" | "no" tail\ntail ::= " " [a-z]+', "no way"),
    ("structural_tag", tag({"type": "tags_with_separator", "tags": [CALL], "separator": "\n", "at_least_one": True}),
     '<call>{"n":1}</call>\n<call>{"n":22}</call>'),
    ("structural_tag", tag({"type": "triggered_tags", "triggers": ["<call>"], "tags": [CALL]}),
     'Let me see. <call>{"n":5}</call> Done.'),
    ("structural_tag", tag({"type": "sequence", "elements": [
        {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"},
        {"type": "regex", "pattern": "[0-9]+"}]}), "<think>a < b / c\n</think>12"),
]  # fmt: skip
REFUSED: list[tuple[GrammarKind, str, str]] = [
    ("json_schema", json.dumps(PERSON), '{"name": "Zo", "age": "7"}'),
    ("json_schema", json.dumps(PERSON), '{"name": "Zo", "age": 7, "kind": "b", "more": 1}'),
    ("json_object", "", "[1]"),
    ("regex", r"[a-f]{3}-\d{2}", "abf-4x"),
    ("ebnf", 'root ::= "yes" | "no"', "maybe"),
    ("structural_tag", tag({"type": "triggered_tags", "triggers": ["<call>"], "tags": [CALL]}), '<call>{"n":x'),
]
INVALID: list[tuple[GrammarKind, str]] = [
    ("regex", "[a-z"),
    ("regex", "(?=a)b"),
    ("json_schema", '{"type": "nonsense"}'),
    ("json_schema", '{"type": '),
    ("json_schema", '{"type": "string", "minLength": 5, "maxLength": 3}'),
    ("ebnf", "root ::= missing"),
    ("ebnf", ""),
    ("structural_tag", '{"type": "structural_tag", "format": {"type": "x"}}'),
    ("structural_tag", "[]"),
]


class Walker:
    """Feeds text to a matcher as tokens, checking the mask before each."""

    def __init__(self, vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> None:
        self.vocabulary = vocabulary
        self.encode = encode

    def allowed(self, matcher: GrammarMatcher) -> np.ndarray:
        bits = bits_of(self.vocabulary.size)
        bits[:] = -1  # what was in it before must not matter
        matcher.fill(bits)
        return np.unpackbits(bits.view(np.uint8), bitorder="little")[: self.vocabulary.size].astype(bool)

    def feed(self, matcher: GrammarMatcher, text: str) -> bool:
        """Whether all of `text` was accepted; the mask and `accept` agree at every token."""
        for token in self.encode(text):
            allowed = bool(self.allowed(matcher)[token])
            assert matcher.accept(token) == allowed, f"token {token} of {text!r}"
            if not allowed:
                return False
        return True


def check_grammar_backend(backend: GrammarBackend, walker: Walker) -> None:
    """Everything that the engine relies on."""
    for kind, text, output in ACCEPTED:
        _accepts(backend.compile(GrammarSpec(kind=kind, text=text)), walker, output)
    for kind, text, output in REFUSED:
        matcher = backend.compile(GrammarSpec(kind=kind, text=text)).matcher()
        assert not (walker.feed(matcher, output) and walker.allowed(matcher)[END]), f"{kind} takes {output!r}"
    for kind, text in INVALID:
        with pytest.raises(GrammarError) as error:
            backend.compile(GrammarSpec(kind=kind, text=text))
        assert error.value.status == 400 and str(error.value).startswith(kind)
    _keeps_special_tokens_out(backend, walker)
    _rolls_back(backend, walker)


def _accepts(compiled: CompiledGrammar, walker: Walker, output: str) -> None:
    assert compiled.nbytes > 0
    matcher, other = compiled.matcher(), compiled.matcher()
    assert walker.feed(matcher, output), output
    assert not matcher.terminated and walker.allowed(matcher)[END], f"not complete: {output}"
    assert matcher.accept(END) and matcher.terminated
    # The engine may sample once more before it knows that the output ended.
    assert list(np.flatnonzero(walker.allowed(matcher))) == [END]
    assert not matcher.accept(walker.encode(output)[0]) and matcher.terminated
    assert walker.feed(other, output), "matchers of one grammar share state"


def _keeps_special_tokens_out(backend: GrammarBackend, walker: Walker) -> None:
    compiled = backend.compile(GrammarSpec(kind="regex", text="(.|\n)*"))
    allowed = walker.allowed(compiled.matcher())
    special = [token for token in walker.vocabulary.special if token != END]
    assert special and not allowed[special].any() and allowed[END]
    assert allowed.sum() > 40_000


def _rolls_back(backend: GrammarBackend, walker: Walker) -> None:
    matcher = backend.compile(GrammarSpec(kind="regex", text="[a-z]{2}[0-9]{2}")).matcher()
    assert walker.feed(matcher, "ab")
    before = walker.allowed(matcher)
    assert walker.feed(matcher, "12") and matcher.accept(END) and matcher.terminated
    count = len(walker.encode("12")) + 1
    matcher.rollback(count)
    assert not matcher.terminated and (walker.allowed(matcher) == before).all()
    matcher.rollback(0)
    assert walker.feed(matcher, "34") and matcher.accept(END)
