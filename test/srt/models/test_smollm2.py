"""The real model against transformers in float32: 22 prompts of 1 to 1,500 tokens, tokens and log probabilities."""

import random
from typing import NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from support.driver import Driver, Request
from support.engines import MODEL, need_model
from support.tiny_models import greedy

FOLDER = MODEL
LENGTHS = (1, 2, 3, 15, 16, 17, 31, 63, 64, 65, 100, 127, 128, 129, 200, 255, 257, 333, 512, 700, 1023, 1500)
FEW = (1, 16, 65, 257, 700)
"""What runs by default; all LENGTHS run in the slow matrix."""
NEW_TOKENS = 8
WORDS = """the a river mountain of in and quickly said that light was not house system number people because small
engine water question answer under between long year government first made could write history Paris 42""".split()  # noqa: SIM905


@pytest.fixture(scope="module", autouse=True)
def the_model() -> None:
    """Fails where the folder is missing: a skip would hide that nothing was compared."""
    need_model()


class Expected(NamedTuple):
    """One prompt and what transformers says to it."""

    prompt: list[int]
    tokens: list[int]
    logprobs: list[float]


def text(words: int) -> str:
    """English-looking text, the same each time."""
    rng = random.Random(words)
    return " ".join(rng.choice(WORDS) + ("." if rng.random() < 0.1 else "") for _ in range(words))


class Reference:
    """transformers' answers, computed once each."""

    def __init__(self) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(FOLDER)
        self._model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
        self._known: dict[int, Expected] = {}

    def __call__(self, length: int) -> Expected:
        """The answer to a prompt of `length` tokens."""
        if length not in self._known:
            prompt = self._tokenizer(text(2 * length))["input_ids"][:length]
            assert len(prompt) == length
            self._known[length] = Expected(prompt, *greedy(self._model, prompt, NEW_TOKENS))
        return self._known[length]


@pytest.fixture(scope="module")
def reference() -> Reference:
    """Shared by the matrix."""
    return Reference()


def check(reference: Reference, lengths: tuple[int, ...], page_size: int, chunk: int) -> None:
    """Run all prompts at once and compare each."""
    expected = [reference(length) for length in lengths]
    requests = [Request(one.prompt, NEW_TOKENS) for one in expected]
    tokens = sum(len(request.prompt) + NEW_TOKENS + page_size for request in requests)
    driver = Driver(FOLDER, page_size=page_size, pages=-(-tokens // page_size), context=2048)
    driver.run(requests, chunk=chunk)
    for request, one in zip(requests, expected, strict=True):
        assert request.tokens == one.tokens, len(one.prompt)
        assert request.logprobs == pytest.approx(one.logprobs, abs=1e-3), len(one.prompt)


@pytest.mark.parametrize(("page_size", "chunk"), [(1, 256), (16, 2048), (64, 64)])
def test_covering_subset(reference: Reference, page_size: int, chunk: int) -> None:
    check(reference, FEW, page_size, chunk)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("chunk", [64, 256, 2048])
def test_whole_matrix(reference: Reference, page_size: int, chunk: int) -> None:
    check(reference, LENGTHS, page_size, chunk)
