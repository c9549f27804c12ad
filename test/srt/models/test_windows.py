"""Sliding windows against transformers: in the upper layers of Qwen2 and Qwen3."""

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from sglang.srt.config.model import read_model_spec
from support.exact import check_greedy, check_logits

Maker = Callable[..., tuple[Path, PreTrainedModel]]
QWEN = {"use_sliding_window": True, "sliding_window": 21, "max_window_layers": 1}


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_upper_layers_of_qwen(checkpoint: Maker, kind: str) -> None:
    folder, model = checkpoint(kind, "odd", **QWEN)
    assert read_model_spec(folder).windows == (0, 21, 21)
    check_logits(folder, model)
    check_greedy(folder, model, compared=slice(5, 7), page_size=4)
