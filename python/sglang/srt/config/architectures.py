"""The registry of model architectures: one line a model. Data only, so that a config can be judged without torch."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """What an architecture's name says that its config.json does not."""

    module: str
    """File under `sglang/srt/models/` whose `MODEL` is the class."""
    qkv_bias: bool = False
    """Q, K and V projections have a bias whatever the config's attention_bias says."""
    qk_norm: bool = False
    """RMS norm over each head of Q and K before rope."""


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "LlamaForCausalLM": Architecture(module="llama"),
        "Qwen2ForCausalLM": Architecture(module="qwen2", qkv_bias=True),
        "Qwen3ForCausalLM": Architecture(module="qwen3", qk_norm=True),
    }
)
