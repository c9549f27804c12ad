"""Gemma 3 against transformers: windows and ropes by layer, its norms, embedding scale and softcap."""

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedModel

from sglang.srt.config.model import read_model_spec
from sglang.srt.errors import CheckpointError
from support.exact import check_bfloat16, check_greedy, check_logits
from support.tiny_models import SHAPES, make_checkpoint

ROPES: dict[str, Any] = {
    "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 2.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "odd": {"sliding_window": 21, "query_pre_attn_scalar": 14, "rope_parameters": ROPES,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "one_kv_head": {"sliding_window": 8, "query_pre_attn_scalar": 16, "final_logit_softcapping": 5.0,
                    "layer_types": ["full_attention", "sliding_attention"]},
    "no_groups": {"sliding_window": 40, "query_pre_attn_scalar": 100, "num_hidden_layers": 7},
}  # fmt: skip


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, PreTrainedModel]]:
    """Shape -> folder and transformers' model."""
    made = {}
    for shape, fields in CONFIGS.items():
        folder = tmp_path_factory.mktemp(shape)
        config = {**SHAPES[shape], **fields, "pad_token_id": 0}
        made[shape] = folder, make_checkpoint(folder, "gemma3_text", **config)
    return made


@pytest.mark.parametrize("shape", sorted(CONFIGS))
def test_logits(gemma: dict[str, tuple[Path, PreTrainedModel]], shape: str) -> None:
    check_logits(*gemma[shape])


@pytest.mark.parametrize("shape", sorted(CONFIGS))
def test_greedy(gemma: dict[str, tuple[Path, PreTrainedModel]], shape: str) -> None:
    check_greedy(*gemma[shape], compared=slice(sorted(CONFIGS).index(shape), None, 3))


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [1, 2, 64])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_page_and_chunk_sizes(gemma: dict[str, tuple[Path, PreTrainedModel]], page_size: int, chunk: int) -> None:
    check_greedy(*gemma["odd"], page_size=page_size, chunk=chunk, compared=slice(6, 7))


def test_bfloat16(gemma: dict[str, tuple[Path, PreTrainedModel]]) -> None:
    check_bfloat16(*gemma["no_groups"])


def test_the_spec(gemma: dict[str, tuple[Path, PreTrainedModel]]) -> None:
    odd = read_model_spec(gemma["odd"][0])
    assert odd.windows == (21, 0, 21)
    assert odd.local_rope is not None and (odd.rope.theta, odd.local_rope.theta) == (50000.0, 300.0)
    assert read_model_spec(gemma["no_groups"][0]).windows == (40, 40, 40, 40, 40, 0, 40)
    with pytest.raises(CheckpointError, match=r"attn_logit_softcapping is 50\.0, expected null"):
        read_model_spec(gemma["odd"][0], {"attn_logit_softcapping": 50.0})
