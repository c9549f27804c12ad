"""Comparisons with transformers that every model passes."""

import random
from pathlib import Path

import torch
from transformers import PreTrainedModel

from sglang.srt.layers.attention.base import AttentionBackend
from sglang.srt.layers.attention.latent import LatentHeads
from sglang.srt.layers.parameter import Weight
from sglang.srt.models.base import CausalLM, LayerHook, ModelInput
from support.driver import Driver, Request
from support.tiny_models import greedy, reference_logits


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

    def weights(self) -> list[Weight]:
        """As the model's."""
        return list(self.model.weights())

    def latent_heads(self) -> tuple[LatentHeads, ...]:
        """As the model's."""
        return self.model.latent_heads()

    def ignored(self) -> tuple[str, ...]:
        """As the model's."""
        return self.model.ignored()


def prompt_of(vocab: int, length: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    return random.Random(seed).choices(range(vocab), k=length)


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference in units of the largest logit."""
    return float((found - expected).abs().max() / expected.abs().max())


def every_logit(
    folder: Path,
    prompt: list[int],
    *,
    chunk: int,
    page_size: int = 16,
    dtype: str = "float32",
    load_format: str = "auto",
) -> torch.Tensor:
    """Logits of all prompt positions, `[tokens, vocab]`, computed in chunks."""
    driver = Driver(folder, page_size=page_size, dtype=dtype, load_format=load_format)
    probe = AllLogits(driver.runner._model)
    driver.runner._model = probe  # type: ignore[assignment]
    driver.run([Request(prompt, 1)], chunk=chunk)
    return torch.cat(probe.kept)


def check_logits(folder: Path, model: PreTrainedModel, *, length: int = 101, chunk: int = 23) -> None:
    """All prompt positions within 1e-4, in chunks that end off every boundary."""
    prompt = prompt_of(model.config.vocab_size, length)
    assert relative(every_logit(folder, prompt, chunk=chunk), reference_logits(model, prompt)) < 1e-4


def check_greedy(
    folder: Path, model: PreTrainedModel, *, compared: slice = slice(None), page_size: int = 16, chunk: int = 37
) -> None:
    """64 tokens of a batch of mixed lengths equal transformers'; `compared`: which requests (its side is slow)."""
    prompts = [prompt_of(model.config.vocab_size, n, n) for n in (1, 2, 15, 16, 17, 64, 129)]
    requests = [Request(prompt, 64) for prompt in prompts]
    Driver(folder, page_size=page_size).run(requests, chunk=chunk)
    for request in requests[compared]:
        tokens, logprobs = greedy(model, request.prompt, 64)
        assert request.tokens == tokens, len(request.prompt)
        assert max(abs(a - b) for a, b in zip(request.logprobs, logprobs, strict=True)) < 1e-3


def check_bfloat16(folder: Path, model: PreTrainedModel) -> None:
    """In bfloat16 we are about as near to float32 as transformers itself."""
    prompt = prompt_of(model.config.vocab_size, 90)
    exact = reference_logits(model, prompt)
    theirs = reference_logits(type(model).from_pretrained(folder, dtype=torch.bfloat16), prompt).float()
    ours = every_logit(folder, prompt, chunk=64, dtype="bfloat16").float()
    assert (ours - exact).square().mean() < 1.5 * (theirs - exact).square().mean()
