"""The attention backend for a model and its pool."""

import logging
from typing import Literal

import torch

from sglang.srt.config.model import AttentionKind, ModelSpec
from sglang.srt.errors import ConfigError
from sglang.srt.kernels.cpu.ops import best_kernels, levels
from sglang.srt.kv_pool.base import KVPool
from sglang.srt.layers.attention.base import AttentionBackend
from sglang.srt.layers.attention.cpu import CpuAttention
from sglang.srt.layers.attention.latent import LatentHeads
from sglang.srt.layers.attention.torch_native import TorchNativeAttention
from sglang.srt.layers.attention.torch_native_mla import TorchNativeMLA

AttentionChoice = Literal["auto", "cpu", "torch_native"]

LOG = logging.getLogger(__name__)


def open_attention(
    spec: ModelSpec,
    pool: KVPool,
    latent_heads: tuple[LatentHeads, ...],
    tp_size: int = 1,
    choice: AttentionChoice = "auto",
    *,
    dtype: torch.dtype,
) -> AttentionBackend:
    """`latent_heads`: what the model of an MLA spec answers; every other model's answer is empty. `dtype`: of queries.

    auto takes the native kernels where they have the model's attention. Raises ConfigError where `choice` has not.
    """
    LOG.info("CPU kernels %s (this CPU has %s)", best_kernels().level, ", ".join(levels()))
    if spec.attention is AttentionKind.MLA:
        if choice == "cpu":
            raise ConfigError("--attention-backend cpu has no latent attention: use torch_native")
        return TorchNativeMLA(pool, heads=latent_heads, scale=spec.attention_scale)
    heads, scale, windows = spec.num_heads // tp_size, spec.attention_scale, spec.windows
    torch_native = TorchNativeAttention(pool, heads=heads, scale=scale, windows=windows)
    if choice == "torch_native":
        return torch_native
    return CpuAttention(pool, best_kernels(), torch_native, heads=heads, scale=scale, dtype=dtype, windows=windows)
