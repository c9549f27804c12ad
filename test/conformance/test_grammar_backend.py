"""Both grammar libraries pass the same suite."""

from collections.abc import Iterator

import pytest
from tokenizers import Tokenizer

from conformance.grammar_backends import END, MODEL, Walker, check_grammar_backend
from sglang.srt.constrained.base import GrammarBackend
from sglang.srt.constrained.limits import GrammarLimits
from sglang.srt.constrained.llguidance_backend import LLGuidanceBackend
from sglang.srt.constrained.vocabulary import load_vocabulary
from sglang.srt.constrained.xgrammar_backend import XGrammarBackend


@pytest.fixture(scope="module")
def walker() -> Walker:
    coder = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    return Walker(load_vocabulary(MODEL, 49152, (END,)), lambda text: coder.encode(text, add_special_tokens=False).ids)


@pytest.fixture(params=["xgrammar", "llguidance"])
def backend(request: pytest.FixtureRequest, walker: Walker) -> Iterator[GrammarBackend]:
    make = {"xgrammar": XGrammarBackend, "llguidance": LLGuidanceBackend}[request.param]
    made = make(walker.vocabulary, GrammarLimits(), whitespace=True)
    yield made
    made.close()
    made.close()


def test_every_backend_conforms(backend: GrammarBackend, walker: Walker) -> None:
    check_grammar_backend(backend, walker)
