"""The folders that all contenders read: a random model of a published shape, and a GGUF of the same weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

QWEN3_SHAPE: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
"""Qwen3-0.6B's published config, but for 32,000 tokens in place of 151,936: 473M parameters, 946 MB."""


def write_qwen3_shape(folder: Path, seed: int = 0) -> None:
    """Random weights of the shape, bfloat16, normal with deviation 0.02; a tokenizer of one word a token."""
    if (folder / "model.safetensors").is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    config = QWEN3_SHAPE
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    words = {f"t{i}": i for i in range(config["vocab_size"])}
    Tokenizer(models.WordLevel(words, unk_token="t0")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: _random(shape, generator) for name, shape in _shapes(config).items()}
    part = folder / "model.part"
    save_file(tensors, part, metadata={"format": "pt"})
    part.rename(folder / "model.safetensors")


def _random(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    return (torch.randn(shape, generator=generator) * 0.02).to(torch.bfloat16)


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    layer = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, query),
        "self_attn.q_norm": (dim,),
        "self_attn.k_norm": (dim,),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


# Hugging Face's name of a layer's tensor -> GGUF's.
_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "embed_tokens": "token_embd",
    "norm": "output_norm",
}


def gguf_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`. Raises KeyError for a tensor it does not know."""
    parts = name.removeprefix("model.").removesuffix(".weight").split(".")
    if name == "lm_head.weight":
        return "output.weight"
    if parts[0] == "layers":
        return f"blk.{parts[1]}.{_GGUF_NAMES['.'.join(parts[2:])]}.weight"
    return f"{_GGUF_NAMES['.'.join(parts)]}.weight"


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a query or key projection as GGUF's `llama` wants them: it rotates neighbours, not halves of a head."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(folder: Path, path: Path) -> None:
    """A bfloat16 GGUF of a llama or qwen3 folder, without a vocabulary: prompts are token ids. Norms in float32."""
    import gguf

    if path.is_file():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    kind = config["model_type"]
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, kind)
    _describe(writer, config)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for file in sorted(folder.glob("*.safetensors")):
        for name, weight in load_file(file).items():
            projection = name.split(".")[-2]
            if kind == "llama" and projection in heads:
                weight = interleaved(weight, heads[projection])
            if weight.dim() == 1:
                writer.add_tensor(gguf_name(name), weight.float().numpy())
                continue
            words = weight.to(torch.bfloat16).contiguous().view(torch.int16).numpy().view(np.uint8)
            writer.add_tensor(gguf_name(name), words, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(path)


def _describe(writer: Any, config: dict[str, Any]) -> None:  # noqa: ANN401 - gguf has no types
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("no_vocab")
