"""Small random checkpoints in Hugging Face's format, and transformers' own model beside each."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

SHAPES: dict[str, dict[str, Any]] = {
    # Odd sizes: 6 heads of 10 dimensions are not the hidden size; vocabulary and feed-forward widths are prime.
    "odd": {"hidden_size": 42, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10,
            "intermediate_size": 53, "vocab_size": 211, "num_hidden_layers": 3, "tie_word_embeddings": False},
    "one_kv_head": {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16,
                    "intermediate_size": 96, "vocab_size": 128, "num_hidden_layers": 2, "tie_word_embeddings": True},
    "no_groups": {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 16,
                  "intermediate_size": 64, "vocab_size": 160, "num_hidden_layers": 1, "tie_word_embeddings": True},
}  # fmt: skip

ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
    "llama3": {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
}  # fmt: skip


def make_checkpoint(folder: Path, kind: str, *, seed: int = 0, **config: object) -> PreTrainedModel:
    """Write a float32 model of transformers' `kind` ("llama", ...) to `folder` and return it in evaluation mode."""
    settings = AutoConfig.for_model(kind, max_position_embeddings=1024, bos_token_id=1, eos_token_id=2, **config)
    model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            # Wider than transformers' own 0.02, so that attention is peaked and logits are far apart.
            parameter.copy_(noise * 1.5 * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 1.0 + 0.3 * noise)
    model.save_pretrained(folder)
    return model


def reference_logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """transformers' float32 logits of every position, `[tokens, vocab]`."""
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


def greedy(model: PreTrainedModel, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """transformers' greedy continuation and its log probabilities."""
    settings = GenerationConfig(
        do_sample=False, max_new_tokens=count, eos_token_id=None, pad_token_id=0,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    ids = torch.tensor([prompt])
    model.generation_config.eos_token_id = None  # what the settings leave open is taken from here
    out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    scores = torch.cat(out.logits).float().log_softmax(-1).max(dim=-1)
    assert scores.indices.tolist() == out.sequences[0, len(prompt) :].tolist()
    return scores.indices.tolist(), scores.values.tolist()
