"""Inverse frequencies against transformers'."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from sglang.srt.config.model_json import JsonFields
from sglang.srt.config.model_rope import read_rope
from sglang.srt.layers.rope import RotaryEmbedding, inverse_frequencies

SCALED: list[dict[str, Any]] = [
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5},
    {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 8192},
]  # fmt: skip


@pytest.mark.parametrize("rope", SCALED)
def test_scaled_frequencies(rope: dict[str, Any]) -> None:
    config = LlamaConfig(hidden_size=256, num_attention_heads=2, rope_parameters=rope)
    expected, _ = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu")
    spec = read_rope(JsonFields("test", {"rope_parameters": rope}))
    torch.testing.assert_close(inverse_frequencies(spec, 128), expected, rtol=1e-6, atol=0)


def test_rotation_turns_pairs_of_opposite_halves() -> None:
    rotary = RotaryEmbedding(read_rope(JsonFields("test", {"rope_theta": 100.0})), 4, torch.float32)
    x = torch.randn(3, 2, 4)
    positions = torch.tensor([0, 1, 5000])
    found = x.clone()
    rotary.at(positions).turn(found)
    assert torch.equal(found[0], x[0])
    for token, position in enumerate(positions.tolist()):
        for pair, frequency in enumerate((1.0, 0.1)):
            angle = torch.tensor(position * frequency)
            first, second = x[token, :, pair], x[token, :, pair + 2]
            torch.testing.assert_close(
                found[token, :, pair], first * angle.cos() - second * angle.sin(), rtol=0, atol=1e-3
            )
            torch.testing.assert_close(
                found[token, :, pair + 2], second * angle.cos() + first * angle.sin(), rtol=0, atol=1e-3
            )
