"""Llama, Qwen2 and Qwen3 against transformers in float32."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from sglang.srt.config.model import read_model_spec
from sglang.srt.core.step import RowOpen, StepRow
from sglang.srt.layers.attention.base import AttentionBackend
from sglang.srt.models.base import CausalLM, LayerHook, ModelInput
from support.driver import GREEDY, Driver, RecordingHook, Request, kv_of
from support.tiny_models import greedy, reference_logits

Maker = Callable[..., tuple[Path, PreTrainedModel]]
KINDS = ("llama", "qwen2", "qwen3")
SHAPES = ("odd", "one_kv_head", "no_groups")


class AllLogits:
    """A model that also keeps the logits of every token."""

    def __init__(self, model: CausalLM) -> None:
        self.model = model
        self.kept: list[torch.Tensor] = []

    def forward(self, inputs: ModelInput, backend: AttentionBackend, hook: LayerHook) -> torch.Tensor | None:
        """As the model's; asks it for all logits."""
        every = self.model.forward(inputs._replace(wanted=torch.arange(len(inputs.tokens))), backend, hook)
        assert every is not None
        self.kept.append(every.clone())
        return None if inputs.wanted is None else every[inputs.wanted]


def prompt_of(vocab: int, length: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    return random.Random(seed).choices(range(vocab), k=length)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference in units of the largest logit."""
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_of_every_position_with_odd_chunks(checkpoint: Maker, kind: str, shape: str) -> None:
    folder, model = checkpoint(kind, shape)
    driver = Driver(folder, page_size=16)
    probe = AllLogits(driver.runner._model)
    driver.runner._model = probe
    prompt = prompt_of(model.config.vocab_size, 101)
    driver.run([Request(prompt, 1)], chunk=23)
    assert [len(logits) for logits in probe.kept] == [23, 23, 23, 23, 9]
    assert relative(torch.cat(probe.kept), reference_logits(model, prompt)) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_in_a_mixed_batch(checkpoint: Maker, kind: str, shape: str) -> None:
    folder, model = checkpoint(kind, shape)
    prompts = [prompt_of(model.config.vocab_size, n, n) for n in (1, 2, 15, 16, 17, 64, 129)]
    requests = [Request(prompt, 64) for prompt in prompts]
    Driver(folder, page_size=16).run(requests, chunk=37)
    for request in requests[SHAPES.index(shape) :: len(SHAPES)]:  # transformers' side is the slow one
        tokens, logprobs = greedy(model, request.prompt, 64)
        assert request.tokens == tokens
        assert request.logprobs == pytest.approx(logprobs, abs=1e-3)


@pytest.mark.parametrize("page_size", [1, 2, 16, 64, 128])
@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_page_and_chunk_sizes(checkpoint: Maker, page_size: int, chunk: int) -> None:
    folder, model = checkpoint("qwen3", "odd")
    requests = [Request(prompt_of(model.config.vocab_size, n, n), 4) for n in (5, 130)]
    expected = greedy(model, requests[1].prompt, 4)[0]
    Driver(folder, page_size=page_size).run(requests, chunk=chunk)
    assert requests[1].tokens == expected


@pytest.mark.parametrize("rope", ["linear", "llama3"])
def test_rope_scaling(checkpoint: Maker, rope: str) -> None:
    folder, model = checkpoint("llama", "no_groups", rope)
    driver = Driver(folder, page_size=16)
    probe = AllLogits(driver.runner._model)
    driver.runner._model = probe
    prompt = prompt_of(model.config.vocab_size, 300)
    driver.run([Request(prompt, 1)], chunk=300)
    assert relative(probe.kept[0], reference_logits(model, prompt)) < 1e-4


def test_llama_with_every_bias(checkpoint: Maker) -> None:
    folder, model = checkpoint("llama", "no_groups", "default", attention_bias=True, mlp_bias=True)
    assert read_model_spec(folder).output_bias
    request = Request(prompt_of(model.config.vocab_size, 40), 16)
    Driver(folder, page_size=8).run([request], chunk=64)
    assert request.tokens == greedy(model, request.prompt, 16)[0]


def test_two_rows_share_cached_pages(checkpoint: Maker) -> None:
    folder, model = checkpoint("llama", "odd")
    driver = Driver(folder, page_size=16)
    prompt = prompt_of(model.config.vocab_size, 57)
    pages = driver.take(len(prompt), 0)
    first = StepRow(slot=0, start=0, length=57, tokens=tuple(prompt), new_pages=pages, sample=True)
    driver.execute([first], (RowOpen(slot=0, sampling=GREEDY, seed=0),))
    other = [*prompt[:48], *prompt_of(model.config.vocab_size, 22, 9)]
    shared = pages[:3] + driver.take(len(other), 3)
    second = StepRow(slot=5, start=48, length=22, tokens=tuple(other[48:]), new_pages=shared, sample=True)
    result = driver.execute([second], (RowOpen(slot=5, sampling=GREEDY, seed=0),))
    assert [sample.token for sample in result.sampled] == greedy(model, other, 1)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_layer_without_logits_stores_the_same_kv(checkpoint: Maker, kind: str) -> None:
    folder, model = checkpoint(kind, "odd")
    prompt = prompt_of(model.config.vocab_size, 45)
    stored: list[torch.Tensor] = []
    for sample in (True, False):
        hook = RecordingHook()
        driver = Driver(folder, page_size=16, hook=hook)
        pages = driver.take(45, 0)
        row = StepRow(slot=0, start=0, length=45, tokens=tuple(prompt), new_pages=pages, sample=sample)
        result = driver.execute([row], (RowOpen(slot=0, sampling=GREEDY, seed=0),))
        assert len(result.sampled) == sample
        assert hook.layers == list(range(model.config.num_hidden_layers))
        stored.append(kv_of(driver, list(pages), 45))
    assert not stored[0].isnan().any()
    torch.testing.assert_close(stored[0], stored[1], rtol=1e-6, atol=1e-6)


def test_the_hook_hears_every_layer_once_a_step(checkpoint: Maker) -> None:
    folder, model = checkpoint("llama", "odd")
    hook = RecordingHook()
    driver = Driver(folder, page_size=4, hook=hook)
    driver.run([Request(prompt_of(211, n, n), 5) for n in (3, 50)], chunk=20)
    steps = driver.step_id - 1  # the last one only closes rows
    assert hook.layers == list(range(model.config.num_hidden_layers)) * steps


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_bfloat16_is_as_near_as_transformers_own(checkpoint: Maker, kind: str) -> None:
    folder, model = checkpoint(kind, "one_kv_head")
    driver = Driver(folder, page_size=16, dtype="bfloat16")
    probe = AllLogits(driver.runner._model)
    driver.runner._model = probe
    prompt = prompt_of(model.config.vocab_size, 90)
    driver.run([Request(prompt, 1)], chunk=64)
    exact = reference_logits(model, prompt)
    theirs = reference_logits(type(model).from_pretrained(folder, dtype=torch.bfloat16), prompt).float()
    ours = torch.cat(probe.kept).float()
    assert (ours - exact).square().mean() < 1.5 * (theirs - exact).square().mean()


def test_a_bfloat16_cache_under_float32_weights_does_not_depend_on_chunks(checkpoint: Maker) -> None:
    folder, model = checkpoint("llama", "odd")
    prompt = prompt_of(model.config.vocab_size, 70)
    answers = []
    for chunk in (70, 16, 9):
        request = Request(prompt, 12)
        Driver(folder, page_size=16, kv_dtype="bfloat16").run([request], chunk=chunk)
        answers.append(request)
    for other in answers[1:]:
        assert other.tokens == answers[0].tokens
        assert other.logprobs == pytest.approx(answers[0].logprobs, abs=2e-4)
