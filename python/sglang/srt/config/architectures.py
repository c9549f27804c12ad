"""The registry of model architectures: one line a model. Data only, so that a config can be judged without torch."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec


class Windows(StrEnum):
    """Which layers see only the last `sliding_window` tokens, where the config does not list them in layer_types."""

    NONE = "no layer"
    ALL = "every layer"
    UPPER = "layers from max_window_layers on, if use_sliding_window"
    PATTERN = "all but every sliding_window_pattern-th layer"


class Experts(StrEnum):
    """Whose config keys describe the mixture of experts."""

    NONE = "dense"
    QWEN3 = "qwen3"
    DEEPSEEK_V2 = "deepseek v2"
    DEEPSEEK_V3 = "deepseek v3"


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """What an architecture's name says that its config.json does not."""

    module: str
    """File under `sglang/srt/models/` whose `MODEL` is the class."""
    qkv_bias: bool = False
    """Q, K and V projections have a bias whatever the config's attention_bias says."""
    qk_norm: bool = False
    """RMS norm over each head of Q and K before rope."""
    mla: bool = False
    """Multi-head latent attention."""
    experts: Experts = Experts.NONE
    windows: Windows = Windows.NONE
    tied: bool = False
    """What an absent tie_word_embeddings means."""


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "DeepseekV2ForCausalLM": Architecture(module="deepseek_v2", mla=True, experts=Experts.DEEPSEEK_V2),
        "DeepseekV3ForCausalLM": Architecture(module="deepseek_v3", mla=True, experts=Experts.DEEPSEEK_V3),
        "Gemma3ForCausalLM": Architecture(module="gemma3", qk_norm=True, windows=Windows.PATTERN, tied=True),
        "LlamaForCausalLM": Architecture(module="llama"),
        "MistralForCausalLM": Architecture(module="mistral", windows=Windows.ALL),
        "Qwen2ForCausalLM": Architecture(module="qwen2", qkv_bias=True, windows=Windows.UPPER),
        "Qwen3ForCausalLM": Architecture(module="qwen3", qk_norm=True, windows=Windows.UPPER),
        "Qwen3MoeForCausalLM": Architecture(
            module="qwen3_moe", qk_norm=True, experts=Experts.QWEN3, windows=Windows.ALL
        ),
    }
)
