"""Multi-head latent attention of a config (DeepSeek-V2, https://arxiv.org/abs/2405.04434, section 2.1)."""

import msgspec

from sglang.srt.config.model_json import JsonFields
from sglang.srt.errors import CheckpointError


class MLASpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of latent attention; elements a head unless they say otherwise."""

    q_lora_rank: int
    """Of the whole query; 0: queries are projected in one step."""
    kv_lora_rank: int
    """Of the latent that all heads share: what is cached, beside the rotated part of the key."""
    nope_dim: int
    """Part of Q and K without rope."""
    rope_dim: int
    """Rotated part of Q; the rotated key is shared by all heads."""
    v_dim: int
    interleaved: bool
    """The projections' rotated dimensions come as pairs (2i, 2i+1) and not (i, i + rope_dim / 2)."""

    @property
    def qk_dim(self) -> int:
        """Elements of Q and K of a head."""
        return self.nope_dim + self.rope_dim

    @property
    def latent_dim(self) -> int:
        """Elements cached a token and layer."""
        return self.kv_lora_rank + self.rope_dim


def read_mla(config: JsonFields) -> MLASpec:
    """From DeepSeek's keys. Raises CheckpointError for what is missing or does not fit."""
    spec = MLASpec(
        q_lora_rank=config.integer("q_lora_rank", 0),
        kv_lora_rank=config.integer("kv_lora_rank"),
        nope_dim=config.integer("qk_nope_head_dim"),
        rope_dim=config.integer("qk_rope_head_dim"),
        v_dim=config.integer("v_head_dim"),
        interleaved=config.boolean("rope_interleave", True),
    )
    for name, value in (
        ("kv_lora_rank", spec.kv_lora_rank),
        ("qk_nope_head_dim", spec.nope_dim),
        ("qk_rope_head_dim", spec.rope_dim),
        ("v_head_dim", spec.v_dim),
    ):
        if value < 1:
            raise config.wrong(name, "at least 1")
    if spec.rope_dim % 2:
        raise CheckpointError(f"{config.source}: qk_rope_head_dim {spec.rope_dim} is odd, rope needs pairs")
    if config.boolean("attention_bias", False) and not spec.q_lora_rank:
        raise CheckpointError(f"{config.source}: attention_bias without q_lora_rank is not supported")
    return spec
