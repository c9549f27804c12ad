"""Qwen3-MoE, DeepSeek-V2, V2-Lite and V3 against transformers in float32: three configs each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from sglang.srt.core.step import RowOpen, StepRow
from support.driver import GREEDY, Driver, RecordingHook, Request
from support.exact import check_bfloat16, check_greedy, check_logits, prompt_of
from support.tiny_models import ROPES, SPARSE, greedy, make_checkpoint

Maker = Callable[[str], tuple[Path, PreTrainedModel]]


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    """Name in SPARSE -> folder and transformers' model."""
    made: dict[str, tuple[Path, PreTrainedModel]] = {}

    def make(name: str) -> tuple[Path, PreTrainedModel]:
        if name not in made:
            kind, rope, config = SPARSE[name]
            folder = tmp_path_factory.mktemp(name)
            made[name] = folder, make_checkpoint(folder, kind, rope_parameters=ROPES[rope], **config)
        return made[name]

    return make


@pytest.mark.parametrize("name", sorted(SPARSE))
def test_logits_of_every_position_with_odd_chunks(sparse: Maker, name: str) -> None:
    check_logits(*sparse(name))


@pytest.mark.parametrize("name", sorted(SPARSE))
def test_greedy_in_a_mixed_batch(sparse: Maker, name: str) -> None:
    first = sorted(SPARSE).index(name) % 3
    check_greedy(*sparse(name), compared=slice(first, None, 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SPARSE))
@pytest.mark.parametrize("page_size", [1, 2, 64])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_page_and_chunk_sizes(sparse: Maker, name: str, page_size: int, chunk: int) -> None:
    check_greedy(*sparse(name), page_size=page_size, chunk=chunk, compared=slice(6, 7))


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "qwen3_moe"])
def test_bfloat16(sparse: Maker, name: str) -> None:
    check_bfloat16(*sparse(name))


@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v2_lite"])
@pytest.mark.parametrize("length", [3, 60])
def test_a_cached_prefix_absorbed_or_expanded(sparse: Maker, name: str, length: int) -> None:
    """Three new tokens on a prefix are absorbed, sixty expand it."""
    folder, model = sparse(name)
    driver = Driver(folder, page_size=16)
    shape = driver.runner._backend._shape  # type: ignore[attr-defined]
    assert 3 < shape.break_even <= 60
    prompt = prompt_of(model.config.vocab_size, 48 + length)
    pages = driver.take(len(prompt), 0)
    first = StepRow(slot=0, start=0, length=48, tokens=tuple(prompt[:48]), new_pages=pages[:3])
    driver.execute([first], (RowOpen(slot=0, sampling=GREEDY, seed=0),))
    rest = StepRow(slot=5, start=48, length=length, tokens=tuple(prompt[48:]), new_pages=pages, sample=True)
    result = driver.execute([rest], (RowOpen(slot=5, sampling=GREEDY, seed=0),))
    tokens, logprobs = greedy(model, prompt, 1)
    assert [sample.token for sample in result.sampled] == tokens
    assert result.sampled[0].logprob == pytest.approx(logprobs[0], abs=1e-4)


@pytest.mark.parametrize("name", ["deepseek_v3", "qwen3_moe"])
def test_the_last_layer_without_logits_stores_the_same_kv(sparse: Maker, name: str) -> None:
    folder, model = sparse(name)
    prompt = prompt_of(model.config.vocab_size, 45)
    stored: list[torch.Tensor] = []
    for sample in (True, False):
        hook = RecordingHook()
        driver = Driver(folder, page_size=16, hook=hook)
        pages = driver.take(45, 0)
        row = StepRow(slot=0, start=0, length=45, tokens=tuple(prompt), new_pages=pages, sample=sample)
        driver.execute([row], (RowOpen(slot=0, sampling=GREEDY, seed=0),))
        layers = driver.pool.layout.kv.layers
        assert hook.layers == list(range(layers))
        last = driver.pool.layer(layers - 1)[list(pages)]
        stored.append(last.flatten(0, 1)[:45] if last.dim() == 3 else last[:2])
    assert not stored[0].isnan().any()
    torch.testing.assert_close(stored[0], stored[1], rtol=1e-5, atol=1e-5)


def test_a_long_prefix_is_expanded_in_pieces(sparse: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang.srt.layers.attention.torch_native_mla.PREFIX_TOKENS", 16)
    folder, model = sparse("deepseek_v3")
    check_logits(folder, model, length=130, chunk=51)


def test_any_config_with_dummy_weights(sparse: Maker) -> None:
    folder, _ = sparse("deepseek_v3")
    driver = Driver(folder, page_size=16, load_format="dummy")
    request = Request([5, 6, 7], 5)
    driver.run([request], chunk=16)
    assert len(request.tokens) == 5


def config_of(name: str) -> dict[str, Any]:
    """The fields of a sparse config."""
    return SPARSE[name][2]
