"""The attention backend for a model and its pool."""

from sglang.srt.config.model import AttentionKind, ModelSpec
from sglang.srt.kv_pool.base import KVPool
from sglang.srt.layers.attention.base import AttentionBackend
from sglang.srt.layers.attention.latent import LatentHeads
from sglang.srt.layers.attention.torch_native import TorchNativeAttention
from sglang.srt.layers.attention.torch_native_mla import TorchNativeMLA


def open_attention(
    spec: ModelSpec, pool: KVPool, latent_heads: tuple[LatentHeads, ...], tp_size: int = 1
) -> AttentionBackend:
    """`latent_heads`: what the model of an MLA spec answers; every other model's answer is empty."""
    if spec.attention is AttentionKind.MLA:
        return TorchNativeMLA(pool, heads=latent_heads, scale=spec.attention_scale)
    heads = spec.num_heads // tp_size
    return TorchNativeAttention(pool, heads=heads, scale=spec.attention_scale, windows=spec.windows)
