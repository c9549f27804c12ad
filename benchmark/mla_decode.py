"""Does decoding with latent attention do work proportional to heads x context? FLOPs and time, absorbed and expanded.

`python benchmark/mla_decode.py [--context 4096] [--heads 16]`: one layer of DeepSeek-V3's latent sizes. FLOPs are
counted by torch's FlopCounterMode over the backend's real calls; time is the median of nine runs.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch.utils.flop_counter import FlopCounterMode

from sglang.srt.config.model_mla import MLASpec
from sglang.srt.core.layout import KVLayout, ShardLayout
from sglang.srt.distributed.collectives import SoloCollectives
from sglang.srt.distributed.groups import ParallelGroup
from sglang.srt.kv_pool.memory import PrivateMemory
from sglang.srt.kv_pool.mla import MLAPool
from sglang.srt.layers.attention.base import AttentionBatch, AttentionRow
from sglang.srt.layers.attention.latent import LatentHeads
from sglang.srt.layers.attention.torch_native_mla import TorchNativeMLA
from sglang.srt.layers.parameter import LayerContext

SIZES = MLASpec(q_lora_rank=0, kv_lora_rank=512, nope_dim=128, rope_dim=64, v_dim=128, interleaved=True)
PAGE = 16


def backend(heads: int, context: int) -> tuple[TorchNativeMLA, LatentHeads, MLAPool]:
    """A backend over a full pool, its layer's projections, and the pool, random."""
    torch.manual_seed(0)
    kv = KVLayout(
        kind="mla", layers=1, page_size=PAGE, kv_heads=1, head_dim=SIZES.latent_dim, dtype="float32", model="random"
    )
    shard = ShardLayout(kv=kv, tp_size=1, num_pages=context // PAGE + 1)
    pool = MLAPool(shard, 0, PrivateMemory(shard.region_bytes(0), lambda nbytes: None))
    pool.layer(0).normal_()
    layer = LatentHeads(LayerContext(torch.float32, ParallelGroup(), SoloCollectives()), "kv_b", SIZES, heads)
    for weight in layer.weights():
        weight.forms[0][0].pieces[0].target.normal_(std=0.05)
    return TorchNativeMLA(pool, heads=(layer,), scale=SIZES.qk_dim**-0.5), layer, pool


def prepared(attention: TorchNativeMLA, context: int) -> torch.Tensor:
    """Plan one decode row after `context` cached tokens; returns its latent."""
    pages = torch.arange(context // PAGE + 1, dtype=torch.int32).unsqueeze(0)
    attention.prepare(AttentionBatch((AttentionRow(context, 1),), pages, torch.tensor([context])))
    return torch.randn(1, SIZES.latent_dim)


def expanded(layer: LatentHeads, q: torch.Tensor, latents: torch.Tensor, scale: float) -> torch.Tensor:
    """The same attention by making every cached token's keys and values, as a decoder without absorption must."""
    keys, values = layer.expand(latents[:, : SIZES.kv_lora_rank])
    rotated = latents[:, None, SIZES.kv_lora_rank :].expand(-1, keys.shape[1], -1)
    scores = torch.einsum("qhd,khd->hqk", q, torch.cat((keys, rotated), dim=-1)) * scale
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).flatten(1)


def flash_flops(q: torch.Size, k: torch.Size, v: torch.Size, *rest: object, **options: object) -> int:
    """Of torch's attention for CPUs, which its counter does not know: scores, then the mean of values."""
    batch, heads, queries, width = q
    return 2 * batch * heads * queries * k[-2] * (width + v[-1])


FORMULAS = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: flash_flops}


def measure(run: Callable[[], torch.Tensor], repeats: int = 9) -> tuple[int, float]:
    """(FLOPs of one run, median milliseconds)."""
    with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        run()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        run()
        times.append((time.perf_counter() - begun) * 1e3)
    return counter.get_total_flops(), statistics.median(times)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table: FLOPs and time at half the context and at all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=16)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(f"one layer, {args.heads} heads, one decode row, float32, one thread")
    print(f"{'context':>8} {'absorbed MFLOP':>15} {'ms':>8} {'expanded MFLOP':>15} {'ms':>8} {'ratio':>6}")
    with torch.inference_mode():
        for context in (args.context // 2, args.context):
            attention, layer, pool = backend(args.heads, context)
            latent = prepared(attention, context)
            q = torch.randn(1, args.heads, SIZES.qk_dim)
            out = attention.attend(0, q, latent)
            latents = pool.layer(0).view(-1, SIZES.latent_dim)[: context + 1]
            scale = SIZES.qk_dim**-0.5
            torch.testing.assert_close(out, expanded(layer, q, latents, scale), rtol=1e-3, atol=1e-4)
            few = measure(lambda: attention.attend(0, q, latent))  # noqa: B023 - runs before the next turn
            many = measure(lambda: expanded(layer, q, latents, scale))  # noqa: B023
            print(
                f"{context:>8} {few[0] / 1e6:>15.1f} {few[1]:>8.2f} {many[0] / 1e6:>15.1f} {many[1]:>8.2f} "
                f"{many[0] / few[0]:>6.1f}"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
