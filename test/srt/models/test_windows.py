"""Sliding windows against transformers: in every layer of Mistral, in the upper layers of Qwen2 and Qwen3."""

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from sglang.srt.config.model import read_model_spec
from support.exact import check_bfloat16, check_greedy, check_logits

Maker = Callable[..., tuple[Path, PreTrainedModel]]
QWEN = {"use_sliding_window": True, "sliding_window": 21, "max_window_layers": 1}


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_upper_layers_of_qwen(checkpoint: Maker, kind: str) -> None:
    folder, model = checkpoint(kind, "odd", **QWEN)
    assert read_model_spec(folder).windows == (0, 21, 21)
    check_logits(folder, model)
    check_greedy(folder, model, compared=slice(5, 7), page_size=4)


@pytest.mark.parametrize("shape", ["odd", "one_kv_head", "no_groups"])
@pytest.mark.parametrize("window", [1, 21, None])
def test_mistral_logits(checkpoint: Maker, shape: str, window: int | None) -> None:
    check_logits(*checkpoint("mistral", shape, sliding_window=window))


def test_mistral_bfloat16(checkpoint: Maker) -> None:
    check_bfloat16(*checkpoint("mistral", "one_kv_head", sliding_window=21))


@pytest.mark.parametrize("shape", ["odd", "one_kv_head", "no_groups"])
def test_mistral_greedy(checkpoint: Maker, shape: str) -> None:
    check_greedy(*checkpoint("mistral", shape, sliding_window=21), compared=slice(4, 7, 2))


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [1, 2, 64])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_mistral_page_and_chunk_sizes(checkpoint: Maker, page_size: int, chunk: int) -> None:
    folder, model = checkpoint("mistral", "odd", sliding_window=21)
    check_greedy(folder, model, page_size=page_size, chunk=chunk, compared=slice(6, 7))
