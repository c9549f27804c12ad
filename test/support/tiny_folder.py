"""A model folder that needs no torch to make: random weights come from --load-format dummy."""

import json
from pathlib import Path

from support.small_tokenizer import byte_level

VOCABULARY = 320


def make_tiny_folder(folder: Path, *, layers: int = 4, context: int = 2048) -> Path:
    """A llama of `layers` layers, 64 wide, over a byte-level tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": layers,
        "head_dim": 16,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 0,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    byte_level(folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder
