"""Embeddings against transformers' hidden states: pooled as the folder declares, over chunks, and asked for twice."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import sglang
from sglang.srt.errors import ConfigError
from support.engines import need_model

TEXTS = ["A cat sleeps.", "Interest rates rose by two points, and the price of salt fell. " * 3, "word " * 60]


def folder_with(tmp_path: Path, way: str) -> Path:
    for path in need_model().iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{way}": True}))
    return tmp_path


@pytest.mark.parametrize("way", ["mean_tokens", "lasttoken"])
def test_embeddings_are_the_reference_s(tmp_path: Path, way: str) -> None:
    settings = {"max_total_tokens": 4096, "dtype": "float32", "chunked_prefill_size": 32, "threads": 1}
    with sglang.Engine(model_path=str(folder_with(tmp_path, way)), is_embedding=True, **settings) as engine:
        found = [engine.encode(TEXTS), engine.encode(TEXTS)]
    tokenizer, model = AutoTokenizer.from_pretrained(need_model()), AutoModel.from_pretrained(need_model())
    for number, text in enumerate(TEXTS):
        with torch.inference_mode():
            states = model.float()(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        pooled = states.mean(dim=0) if way == "mean_tokens" else states[-1]
        wanted = torch.nn.functional.normalize(pooled, dim=0)
        for answers in found:
            assert torch.allclose(torch.tensor(answers[number]["embedding"]), wanted, atol=2e-4), text


def test_embeddings_do_not_go_with_disaggregation() -> None:
    with pytest.raises(ConfigError, match="is-embedding"):
        sglang.Engine(model_path=str(need_model()), is_embedding=True, disagg=True)
