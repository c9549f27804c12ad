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
    # DeepSeek-V3's: equal magnitudes cancel in cosine and sine, their square scales the scores (reported case A17).
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "beta_fast": 32, "beta_slow": 1,
             "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 16},
    "yarn_parts": {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "beta_fast": 16, "beta_slow": 2,
                   "mscale": 0.707, "mscale_all_dim": 0.9, "original_max_position_embeddings": 32, "truncate": False},
}  # fmt: skip


_MLA: dict[str, Any] = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 96, "vocab_size": 160,
    "num_hidden_layers": 3, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 24, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "num_nextn_predict_layers": 0, "tie_word_embeddings": False,
}  # fmt: skip
_QWEN: dict[str, Any] = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
    "vocab_size": 160, "num_hidden_layers": 3, "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 24,
    "norm_topk_prob": True, "tie_word_embeddings": False,
}  # fmt: skip

SPARSE: dict[str, tuple[str, str, dict[str, Any]]] = {
    # name -> (transformers' kind, rope, config). Odd sizes: no power of two among heads, ranks, experts.
    "deepseek_v3": ("deepseek_v3", "yarn", {**_MLA, "q_lora_rank": 24, "n_group": 4, "topk_group": 2,
                    "routed_scaling_factor": 2.5}),
    "deepseek_v3_odd": ("deepseek_v3", "yarn_parts", {**_MLA, "hidden_size": 42, "num_attention_heads": 3,
                        "num_key_value_heads": 3, "q_lora_rank": 19, "kv_lora_rank": 22, "qk_nope_head_dim": 10,
                        "qk_rope_head_dim": 6, "v_head_dim": 20, "n_routed_experts": 9, "num_experts_per_tok": 5,
                        "n_group": 3, "topk_group": 2, "moe_intermediate_size": 13, "n_shared_experts": 2,
                        "norm_topk_prob": False, "vocab_size": 211, "first_k_dense_replace": 2}),
    "deepseek_v3_plain": ("deepseek_v3", "default", {**_MLA, "q_lora_rank": None, "n_group": 1, "topk_group": 1,
                          "first_k_dense_replace": 0, "num_hidden_layers": 2, "rope_interleave": False,
                          "tie_word_embeddings": True, "num_attention_heads": 1, "num_key_value_heads": 1}),
    "deepseek_v2": ("deepseek_v2", "yarn", {**_MLA, "q_lora_rank": 24, "topk_method": "group_limited_greedy",
                    "n_group": 4, "topk_group": 2, "routed_scaling_factor": 16.0, "n_shared_experts": 2}),
    "deepseek_v2_lite": ("deepseek_v2", "yarn", {**_MLA, "q_lora_rank": None, "topk_method": "greedy",
                         "n_group": 1, "topk_group": 1, "n_shared_experts": 2, "num_experts_per_tok": 6}),
    "deepseek_v2_odd": ("deepseek_v2", "default", {**_MLA, "hidden_size": 42, "num_attention_heads": 3,
                        "num_key_value_heads": 3, "q_lora_rank": None, "kv_lora_rank": 22, "v_head_dim": 12,
                        "n_routed_experts": 7, "num_experts_per_tok": 3, "topk_method": "greedy"}),
    "qwen3_moe": ("qwen3_moe", "default", _QWEN),
    "qwen3_moe_odd": ("qwen3_moe", "linear", {**_QWEN, "hidden_size": 42, "num_attention_heads": 6,
                      "num_key_value_heads": 3, "head_dim": 10, "num_experts": 11, "num_experts_per_tok": 3,
                      "moe_intermediate_size": 13, "norm_topk_prob": False, "vocab_size": 211,
                      "mlp_only_layers": [1]}),
    "qwen3_moe_steps": ("qwen3_moe", "yarn", {**_QWEN, "num_key_value_heads": 1, "decoder_sparse_step": 2,
                        "num_hidden_layers": 4, "tie_word_embeddings": True, "num_experts_per_tok": 1}),
}  # fmt: skip


def make_checkpoint(folder: Path, kind: str, *, seed: int = 0, **config: object) -> PreTrainedModel:
    """Write a float32 model of transformers' `kind` ("llama", ...) to `folder` and return it in evaluation mode."""
    settings = AutoConfig.for_model(kind, max_position_embeddings=1024, bos_token_id=1, eos_token_id=2, **config)
    model = AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    model.set_experts_implementation("eager")  # its grouped product refuses rows that are no multiple of 16 bytes
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        # Buffers hold correction biases, which are parameters in every other respect.
        biases = (value for name, value in model.named_buffers() if name.endswith("e_score_correction_bias"))
        for parameter in (*model.parameters(), *biases):
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
