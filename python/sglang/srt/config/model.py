"""A Hugging Face model folder's configuration -> ModelSpec. No torch: the front end reads it too.

Nothing else in the engine asks which model it serves; what a room needs to know about a model is a field here.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from sglang.srt.config.architectures import ARCHITECTURES, Architecture
from sglang.srt.config.model_json import JsonFields, read_json
from sglang.srt.config.model_mla import MLASpec, read_mla
from sglang.srt.config.model_moe import MoESpec, read_moe
from sglang.srt.config.model_quant import QuantSpec, read_quant
from sglang.srt.config.model_rope import RopeSpec
from sglang.srt.config.model_window import read_ropes, read_windows
from sglang.srt.errors import CheckpointError

ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
DTYPES = ("float32", "bfloat16", "float16")


class AttentionKind(StrEnum):
    """What one token's KV is: K and V of every KV head, or one compressed latent."""

    GQA = "gqa"
    MLA = "mla"


class GenerationDefaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling defaults of generation_config.json; None where the model has no opinion."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shape of one decoder-only model. Sizes count elements of the whole model, before any sharding."""

    architecture: str
    attention: AttentionKind = AttentionKind.GQA
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    """1 for MLA: all heads share one latent."""
    head_dim: int
    """Elements that the cache holds a KV head: of K (V has as many), or of MLA's latent with its rotated key."""
    intermediate_size: int
    """Of dense layers."""
    activation: str = "silu"
    vocab_size: int
    max_positions: int
    """Context length in tokens."""
    rope: RopeSpec
    local_rope: RopeSpec | None = None
    """Of layers with a window, where it differs."""
    rotary_dim: int
    """Rotated elements of a head."""
    windows: tuple[int, ...] = ()
    """For each layer how many tokens a query sees, itself included; 0: all. Empty: every layer sees all."""
    attention_scale: float
    """What scores are multiplied by before the softmax."""
    logit_softcap: float = 0.0
    """Logits l become softcap * tanh(l / softcap); 0: they stay."""
    mla: MLASpec | None = None
    moe: MoESpec | None = None
    mtp_layers: int = 0
    """Layers for multi-token prediction that the checkpoint may hold after the model's own."""
    rms_norm_eps: float
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    """Bias of the attention output projection."""
    mlp_bias: bool
    qk_norm: bool
    dtype: str
    """Of the checkpoint's weights: what `--dtype auto` means."""
    quant: QuantSpec | None = None
    """How they are quantised, if they are; layers compute with the dequantised weights."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    """End tokens of config.json and generation_config.json together, ascending."""
    generation: GenerationDefaults

    def window(self, layer: int) -> int:
        """Tokens that a query of this layer sees, itself included; 0: all."""
        return self.windows[layer] if self.windows else 0


def read_model_spec(folder: Path, overrides: Mapping[str, Any] | None = None) -> ModelSpec:
    """The spec of a model folder; `overrides` replace top-level fields of its config.json.

    Raises CheckpointError, in one line, for a missing folder or file, a field of the wrong type, sizes that do not fit
    together, or an architecture, rope type, activation, sliding window or quantisation that is not supported.
    """
    if not folder.is_dir():
        raise CheckpointError(f"model folder {folder} does not exist")
    config = JsonFields(str(folder / "config.json"), read_json(folder / "config.json") | dict(overrides or {}))
    path = folder / "generation_config.json"
    generation = JsonFields(str(path), read_json(path) if path.exists() else {})
    spec = _spec(config, generation)
    _check_sizes(config.source, spec)
    return spec


def _spec(config: JsonFields, generation: JsonFields) -> ModelSpec:
    name, architecture = _architecture(config)
    _refuse_unsupported(config)
    layers = config.integer("num_hidden_layers")
    attention_bias = config.boolean("attention_bias", False)
    rope, local_rope = read_ropes(config)
    mla = read_mla(config) if architecture.mla else None
    shape = _gqa_shape(config) if mla is None else _mla_shape(config, mla, rope)
    return ModelSpec(
        architecture=name,
        num_layers=layers,
        hidden_size=config.integer("hidden_size"),
        num_heads=config.integer("num_attention_heads"),
        **shape,
        intermediate_size=config.integer("intermediate_size"),
        activation=_activation(config),
        vocab_size=config.integer("vocab_size"),
        max_positions=config.integer("max_position_embeddings", 2048),
        rope=rope,
        local_rope=local_rope,
        windows=read_windows(config, architecture.windows, layers),
        logit_softcap=config.number("final_logit_softcapping", 0.0),
        mla=mla,
        moe=read_moe(config, architecture.experts, layers),
        mtp_layers=config.integer("num_nextn_predict_layers", 0) if architecture.mla else 0,
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        tie_word_embeddings=config.boolean("tie_word_embeddings", architecture.tied),
        qkv_bias=architecture.qkv_bias or attention_bias,
        output_bias=attention_bias,
        mlp_bias=config.boolean("mlp_bias", False),
        qk_norm=architecture.qk_norm,
        dtype=_dtype(config),
        quant=read_quant(config),
        bos_token_id=config.integer("bos_token_id") if config.has("bos_token_id") else None,
        eos_token_ids=tuple(sorted({*config.ids("eos_token_id"), *generation.ids("eos_token_id")})),
        generation=_generation(generation),
    )


def _gqa_shape(config: JsonFields) -> dict[str, Any]:
    heads = config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", config.integer("hidden_size") // max(heads, 1))
    return {
        "attention": AttentionKind.GQA,
        "num_kv_heads": config.integer("num_key_value_heads", heads),
        "head_dim": head_dim,
        "rotary_dim": head_dim,
        "attention_scale": max(config.number("query_pre_attn_scalar", float(head_dim)), 1e-9) ** -0.5,
    }


def _mla_shape(config: JsonFields, mla: MLASpec, rope: RopeSpec) -> dict[str, Any]:
    return {
        "attention": AttentionKind.MLA,
        "num_kv_heads": 1,
        "head_dim": mla.latent_dim,
        "rotary_dim": mla.rope_dim,
        "attention_scale": mla.qk_dim**-0.5 * rope.score_factor,
    }


def _architecture(config: JsonFields) -> tuple[str, Architecture]:
    names = config.raw("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise config.wrong("architectures", "a list of one name")
    if names[0] not in ARCHITECTURES:
        supported = ", ".join(sorted(ARCHITECTURES))
        raise CheckpointError(f"{config.source}: architecture {names[0]!r} is not supported; supported: {supported}")
    return names[0], ARCHITECTURES[names[0]]


def _refuse_unsupported(config: JsonFields) -> None:
    if config.has("attn_logit_softcapping"):
        raise config.wrong("attn_logit_softcapping", "null")


def _activation(config: JsonFields) -> str:
    """Gemma's configs say hidden_activation."""
    key = "hidden_act" if config.has("hidden_act") else "hidden_activation"
    name = config.text(key, "silu")
    if name not in ACTIVATIONS:
        raise config.wrong(key, " or ".join(ACTIVATIONS))
    return name


def _dtype(config: JsonFields) -> str:
    """transformers 5 writes `dtype`, older versions `torch_dtype`."""
    name = config.text("dtype", config.text("torch_dtype", "float32")).removeprefix("torch.")
    if name not in DTYPES:
        raise CheckpointError(f"{config.source}: dtype {name!r} is not supported; supported: {', '.join(DTYPES)}")
    return name


def _generation(fields: JsonFields) -> GenerationDefaults:
    return GenerationDefaults(
        temperature=fields.optional_number("temperature"),
        top_p=fields.optional_number("top_p"),
        top_k=fields.integer("top_k") if fields.has("top_k") else None,
        min_p=fields.optional_number("min_p"),
        repetition_penalty=fields.optional_number("repetition_penalty"),
    )


def _check_sizes(source: str, spec: ModelSpec) -> None:
    sizes = {
        "num_hidden_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.intermediate_size,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_positions,
    }
    for name, value in sizes.items():
        if value < 1:
            raise CheckpointError(f"{source}: {name} is {value}, expected at least 1")
    if spec.num_heads % spec.num_kv_heads:
        raise CheckpointError(
            f"{source}: num_attention_heads {spec.num_heads} is no multiple of num_key_value_heads {spec.num_kv_heads}"
        )
    if spec.rotary_dim % 2:
        raise CheckpointError(f"{source}: head_dim {spec.rotary_dim} is odd, rope needs pairs")
    bad = [token for token in spec.eos_token_ids if not 0 <= token < spec.vocab_size]
    if bad:
        raise CheckpointError(f"{source}: eos_token_id {bad} lies outside the vocabulary of {spec.vocab_size}")
