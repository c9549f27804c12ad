"""The KV layout that a model has in this engine."""

from typing import Literal

from sglang.srt.config.model import ModelSpec
from sglang.srt.core.layout import KVLayout


def kv_layout(spec: ModelSpec, *, page_size: int, dtype: Literal["float32", "bfloat16"], model: str) -> KVLayout:
    """How this model's KV lies in pages of `page_size` tokens; `model` is `model_digest`'s answer."""
    return KVLayout(
        kind=spec.attention.value,
        layers=spec.num_layers,
        page_size=page_size,
        kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        dtype=dtype,
        model=model,
    )
