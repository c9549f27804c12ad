"""Model configs, old and new style, and the digest."""

import json
from pathlib import Path
from typing import Any

import pytest

from sglang.srt.config.model import AttentionKind, ModelSpec, read_model_spec
from sglang.srt.config.model_rope import RopeKind
from sglang.srt.errors import CheckpointError
from sglang.srt.kv_pool.layout import kv_layout

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 512, "eos_token_id": 2,
}  # fmt: skip


def spec_of(folder: Path, generation: dict[str, Any] | None = None, **fields: object) -> ModelSpec:
    """The spec of BASE with some fields replaced."""
    (folder / "config.json").write_text(json.dumps(BASE | fields))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_model_spec(folder)


def test_defaults(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    assert (spec.num_kv_heads, spec.head_dim, spec.attention) == (4, 16, AttentionKind.GQA)
    assert not (spec.qkv_bias or spec.output_bias or spec.mlp_bias or spec.qk_norm or spec.tie_word_embeddings)
    assert spec.rope.theta == 10000.0


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {"rope_parameters": {"rope_type": "default"}, "rope_theta": 5e5},
        {"rope_parameters": {"rope_theta": 5e5}},
        # What decides is the type: a default rope stays plain whatever YaRN left beside it.
        {
            "rope_parameters": {
                "rope_theta": 5e5,
                "rope_type": "default",
                "factor": 40.0,
                "beta_fast": 32,
                "mscale": 1.0,
            }
        },
    ],
)
def test_plain_rope_in_every_spelling(tmp_path: Path, fields: dict[str, Any]) -> None:
    rope = spec_of(tmp_path, **fields).rope
    assert (rope.kind, rope.theta, rope.factor) == (RopeKind.DEFAULT, 5e5, 1.0)


@pytest.mark.parametrize("where", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_scaled_rope_in_every_spelling(tmp_path: Path, where: str, key: str) -> None:
    linear = spec_of(tmp_path, rope_theta=7.0, **{where: {key: "linear", "factor": 4}}).rope
    assert (linear.kind, linear.theta, linear.factor) == (RopeKind.LINEAR, 7.0, 4.0)
    fields = {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64}
    llama3 = spec_of(tmp_path, **{where: {key: "llama3", **fields}}).rope
    assert (llama3.kind, llama3.original_max_positions) == (RopeKind.LLAMA3, 64)


def test_end_tokens_of_both_files(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, {"eos_token_id": [7, 2], "temperature": 0.6, "top_k": 20})
    assert spec.eos_token_ids == (2, 7)
    assert (spec.generation.temperature, spec.generation.top_k, spec.generation.top_p) == (0.6, 20, None)


def test_what_the_architecture_implies(tmp_path: Path) -> None:
    assert spec_of(tmp_path, architectures=["Qwen2ForCausalLM"]).qkv_bias
    qwen3 = spec_of(tmp_path, architectures=["Qwen3ForCausalLM"], head_dim=32)
    assert qwen3.qk_norm and not qwen3.qkv_bias and qwen3.head_dim == 32


def test_a_sliding_window_that_is_switched_off(tmp_path: Path) -> None:
    spec_of(tmp_path, architectures=["Qwen2ForCausalLM"], sliding_window=4096, use_sliding_window=False)


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}, (0, 9)),
        ({"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2}, ()),
        ({"sliding_window": 9, "max_window_layers": 0}, ()),
        (
            {"use_sliding_window": True, "sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]},
            (9, 0),
        ),
    ],
)
def test_windows_of_layers(tmp_path: Path, fields: dict[str, Any], windows: tuple[int, ...]) -> None:
    assert spec_of(tmp_path, architectures=["Qwen2ForCausalLM"], **fields).windows == windows


def test_layer_types_that_do_not_fit(tmp_path: Path) -> None:
    fields = {"use_sliding_window": True, "sliding_window": 9, "layer_types": ["sliding_attention"]}
    with pytest.raises(CheckpointError, match=r"layer_types is .*, expected a list of 2"):
        spec_of(tmp_path, architectures=["Qwen2ForCausalLM"], **fields)


def test_overrides_replace_fields(tmp_path: Path) -> None:
    spec_of(tmp_path)
    assert read_model_spec(tmp_path, {"num_hidden_layers": 1}).num_layers == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"architectures": ["Zebra"]},
            "architecture 'Zebra' is not supported; supported: Deepseek.*Llama.*Qwen3",
        ),
        ({"architectures": None}, "architectures is None"),
        (
            {"rope_parameters": {"rope_type": "spiral"}},
            "rope type 'spiral' is not supported; supported: default, linear",
        ),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"hidden_size": "64"}, "hidden_size is '64', expected an integer"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_key_value_heads": 3}, "4 is no multiple of num_key_value_heads 3"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu', expected silu or gelu"),
        ({"sliding_window": 128}, "sliding_window 128 is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised"),
        (
            {"architectures": ["DeepseekV3ForCausalLM"]},
            "kv_lora_rank is missing",
        ),
        ({"eos_token_id": 100}, r"eos_token_id \[100\] lies outside the vocabulary of 100"),
        ({"eos_token_id": "x"}, "eos_token_id is 'x'"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, expected true or false"),
        ({"dtype": "int4"}, "dtype 'int4' is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    ],
)
def test_each_fault_has_one_line(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        spec_of(tmp_path, **fields)
    assert "\n" not in str(caught.value)


def test_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        read_model_spec(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"config\.json does not exist"):
        read_model_spec(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="holds list"):
        read_model_spec(tmp_path)


def test_kv_layout(tmp_path: Path) -> None:
    layout = kv_layout(spec_of(tmp_path, num_key_value_heads=2), page_size=16, dtype="bfloat16", model="m")
    assert (layout.kind, layout.layers, layout.kv_heads, layout.head_dim) == ("gqa", 2, 2, 16)
    assert layout.bytes_per_token() == 2 * 2 * 2 * 16 * 2
