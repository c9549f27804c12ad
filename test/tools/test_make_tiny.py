"""Every tiny model loads and generates; the same seed gives the same bytes."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from sglang.make_tiny import main
from sglang.srt.config.model import read_model_spec
from sglang.srt.managers.tokenizer import Tokenizer
from sglang.tools.tiny.shapes import TINY
from support.driver import Driver, Request
from support.exact import every_logit, prompt_of, relative
from support.tiny_models import reference_logits


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder a kind."""
    root = tmp_path_factory.mktemp("tiny")
    for kind in TINY:
        assert main([kind, "--out", str(root / kind)]) == 0
    return root


@pytest.mark.parametrize("kind", sorted(TINY))
def test_it_generates(folders: Path, kind: str) -> None:
    request = Request(prompt_of(512, 70), 5)
    Driver(folders / kind, page_size=16, dtype="bfloat16", context=1024).run([request], chunk=33)
    assert len(request.tokens) == 5


@pytest.mark.parametrize("kind", sorted(TINY))
def test_it_is_a_real_checkpoint(folders: Path, kind: str) -> None:
    """transformers reads the folder, and says the same."""
    model = AutoModelForCausalLM.from_pretrained(folders / kind, dtype=torch.float32).eval()
    prompt = prompt_of(512, 150)
    driver = every_logit(folders / kind, prompt, chunk=64)
    assert relative(driver, reference_logits(model, prompt)) < 1e-4


@pytest.mark.parametrize("kind", sorted(TINY))
def test_its_tokenizer_and_config_agree(folders: Path, kind: str) -> None:
    folder = folders / kind
    spec = read_model_spec(folder)
    tokenizer = Tokenizer.load(str(folder), str(folder))
    theirs = AutoTokenizer.from_pretrained(folder)
    text = "Two pages, naïve 世界 <|x|>"
    assert tokenizer.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    assert max(theirs.get_vocab().values()) == spec.vocab_size - 1
    assert theirs.eos_token_id in spec.eos_token_ids
    rendered = theirs.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert "hi" in rendered


def test_the_seed_decides(tmp_path: Path) -> None:
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        assert main(["qwen3", "--out", str(tmp_path / name), "--seed", seed]) == 0
    files = sorted(file.name for file in (tmp_path / "a").iterdir())
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)
    shard = next(name for name in files if name.endswith(".safetensors"))
    assert (tmp_path / "a" / shard).read_bytes() != (tmp_path / "c" / shard).read_bytes()


def test_a_real_tokenizer_decides_the_vocabulary(folders: Path, tmp_path: Path) -> None:
    assert main(["llama3", "--out", str(tmp_path), "--tokenizer", str(folders / "deepseek-r1")]) == 0
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == 1
    assert main(["llama3", "--out", str(tmp_path), "--tokenizer", str(tmp_path / "gone")]) == 2


def test_prediction_layers_are_written(folders: Path) -> None:
    index = json.loads((folders / "deepseek-r1" / "model.safetensors.index.json").read_text())
    file = index["weight_map"]["model.layers.4.eh_proj.weight"]
    assert load_file(folders / "deepseek-r1" / file)["model.layers.4.eh_proj.weight"].shape == (128, 256)
    bias = index["weight_map"]["model.layers.1.mlp.gate.e_score_correction_bias"]
    assert (
        load_file(folders / "deepseek-r1" / bias)["model.layers.1.mlp.gate.e_score_correction_bias"].dtype
        is torch.float32
    )


def test_fp8_stands_for_nearly_the_same_weights(folders: Path, tmp_path: Path) -> None:
    assert main(["deepseek-r1", "--out", str(tmp_path), "--fp8"]) == 0
    prompt = prompt_of(512, 60)
    exact = every_logit(folders / "deepseek-r1", prompt, chunk=60)
    found = every_logit(tmp_path, prompt, chunk=60)
    similar = torch.nn.functional.cosine_similarity(found, exact, dim=-1)
    assert 0.9 < float(similar.mean()) < 0.99999
