"""config.json of real models with sizes scaled down; whatever is not a size is as published."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from sglang.tools.tiny.templates import CHATML, DEEPSEEK, GEMMA, LLAMA3, MISTRAL


class TinyModel(msgspec.Struct, frozen=True, kw_only=True):
    """One kind that make_tiny knows."""

    about: str
    """The model whose config it is."""
    config: Mapping[str, Any]
    """config.json without vocab_size and special token ids, which the tokenizer decides."""
    bos: str
    """Empty: the model has none."""
    eos: str
    special: tuple[str, ...] = ()
    """Further special tokens."""
    template: str
    generation: Mapping[str, Any] = MappingProxyType({})
    """Of generation_config.json."""


_DEEPSEEK_SPECIAL = ("<｜▁pad▁｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>")
_QWEN_SPECIAL = ("<|im_start|>", "<|im_end|>")
_DEEPSEEK: dict[str, Any] = {
    "hidden_act": "silu", "hidden_size": 128, "intermediate_size": 320, "moe_intermediate_size": 64,
    "num_hidden_layers": 4, "first_k_dense_replace": 1, "moe_layer_freq": 1, "num_attention_heads": 8,
    "num_key_value_heads": 8, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
    "attention_bias": False, "rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": False,
    "max_position_embeddings": 5120, "dtype": "bfloat16",
}  # fmt: skip
_YARN = {
    "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip
_V3: dict[str, Any] = {
    **_DEEPSEEK, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "q_lora_rank": 48,
    "n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 1, "n_group": 4, "topk_group": 2,
    "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 1, "rope_scaling": _YARN,
}  # fmt: skip
_V2: dict[str, Any] = {
    **_DEEPSEEK, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "n_routed_experts": 16,
    "num_experts_per_tok": 6, "n_shared_experts": 2, "norm_topk_prob": False, "scoring_func": "softmax",
    "rope_scaling": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
}  # fmt: skip
_QWEN: dict[str, Any] = {
    "hidden_act": "silu", "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "attention_bias": False, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096, "dtype": "bfloat16", "use_sliding_window": False, "sliding_window": None,
}  # fmt: skip
_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 128,
    "intermediate_size": 320, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "attention_bias": False, "mlp_bias": False, "rms_norm_eps": 1e-5, "dtype": "bfloat16",
}  # fmt: skip

TINY: Mapping[str, TinyModel] = MappingProxyType(
    {
        "deepseek-r1": TinyModel(
            about="DeepSeek-R1 (and V3)",
            config=_V3,
            bos="<｜begin▁of▁sentence｜>",
            eos="<｜end▁of▁sentence｜>",
            special=_DEEPSEEK_SPECIAL,
            template=DEEPSEEK,
            generation={"temperature": 0.6, "top_p": 0.95},
        ),
        "deepseek-v2": TinyModel(
            about="DeepSeek-V2",
            config={
                **_V2, "q_lora_rank": 48, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
                "routed_scaling_factor": 16.0,
            },
            bos="<｜begin▁of▁sentence｜>",
            eos="<｜end▁of▁sentence｜>",
            special=_DEEPSEEK_SPECIAL,
            template=DEEPSEEK,
        ),
        "deepseek-v2-lite": TinyModel(
            about="DeepSeek-V2-Lite",
            config={
                **_V2, "q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1,
                "routed_scaling_factor": 1.0,
            },
            bos="<｜begin▁of▁sentence｜>",
            eos="<｜end▁of▁sentence｜>",
            special=_DEEPSEEK_SPECIAL,
            template=DEEPSEEK,
        ),
        "qwen3-coder": TinyModel(
            about="Qwen3-Coder (480B-A35B and 30B-A3B), Qwen3-MoE",
            config={
                **_QWEN, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 32,
                "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 64, "norm_topk_prob": True,
                "decoder_sparse_step": 1, "mlp_only_layers": [], "rope_theta": 10000000, "tie_word_embeddings": False,
            },
            bos="",
            eos="<|endoftext|>",
            special=_QWEN_SPECIAL,
            template=CHATML,
            generation={"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
        ),
        "qwen3": TinyModel(
            about="Qwen3-0.6B",
            config={
                **_QWEN, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32,
                "rope_theta": 1000000, "tie_word_embeddings": True,
            },
            bos="",
            eos="<|endoftext|>",
            special=_QWEN_SPECIAL,
            template=CHATML,
            generation={"temperature": 0.6, "top_p": 0.95, "top_k": 20},
        ),
        "qwen2.5": TinyModel(
            about="Qwen2.5-7B",
            config={
                **_QWEN, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rope_theta": 1000000.0,
                "sliding_window": 131072, "max_window_layers": 4, "tie_word_embeddings": False,
            },
            bos="",
            eos="<|endoftext|>",
            special=_QWEN_SPECIAL,
            template=CHATML,
            generation={"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05},
        ),
        "llama3": TinyModel(
            about="Llama-3.1-8B",
            config={
                **_LLAMA, "max_position_embeddings": 4096, "rope_theta": 500000.0, "tie_word_embeddings": False,
                "rope_scaling": {
                    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 256,
                },
            },
            bos="<|begin_of_text|>",
            eos="<|end_of_text|>",
            special=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
            template=LLAMA3,
            generation={"temperature": 0.6, "top_p": 0.9},
        ),
        "smollm2": TinyModel(
            about="SmolLM2-135M: 9 heads over 3",
            config={
                **_LLAMA, "hidden_size": 144, "num_attention_heads": 9, "num_key_value_heads": 3,
                "max_position_embeddings": 2048, "rope_theta": 100000.0, "tie_word_embeddings": True,
            },
            bos="",
            eos="<|endoftext|>",
            special=_QWEN_SPECIAL,
            template=CHATML,
        ),
        "mistral": TinyModel(
            about="Mistral-7B-v0.1: every layer sees a window",
            config={
                **{key: value for key, value in _LLAMA.items() if not key.endswith("_bias")},
                "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 40,
                "max_position_embeddings": 4096, "rope_theta": 10000.0, "tie_word_embeddings": False,
            },
            bos="<s>",
            eos="</s>",
            special=("[INST]", "[/INST]"),
            template=MISTRAL,
        ),
        "gemma3": TinyModel(
            about="Gemma-3-1B: five windowed layers to a full one, two rope bases",
            config={
                "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 128,
                "hidden_activation": "gelu_pytorch_tanh", "intermediate_size": 320, "num_hidden_layers": 7,
                "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64, "query_pre_attn_scalar": 64,
                "attention_bias": False, "attn_logit_softcapping": None, "final_logit_softcapping": None,
                "rms_norm_eps": 1e-6, "rope_theta": 1000000, "rope_local_base_freq": 10000, "rope_scaling": None,
                "sliding_window": 48, "sliding_window_pattern": 6, "max_position_embeddings": 4096,
                "tie_word_embeddings": True, "dtype": "bfloat16",
            },
            bos="<bos>",
            eos="<eos>",
            special=("<pad>", "<start_of_turn>", "<end_of_turn>"),
            template=GEMMA,
            generation={"top_k": 64, "top_p": 0.95},
        ),
    }
)  # fmt: skip
