"""Latent attention over poisoned pages against attention written out, and what decoding costs."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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

SPEC = MLASpec(q_lora_rank=0, kv_lora_rank=10, nope_dim=6, rope_dim=4, v_dim=5, interleaved=True)
HEADS, SCALE = 3, 0.4
rows = st.lists(st.tuples(st.integers(0, 70), st.one_of(st.just(1), st.integers(1, 30))), min_size=1, max_size=7)


def heads_of(spec: MLASpec, heads: int) -> tuple[LatentHeads, torch.Tensor]:
    """A layer's projections, and their weight `[heads, nope + v, rank]`."""
    layer = LatentHeads(LayerContext(torch.float32, ParallelGroup(), SoloCollectives()), "kv_b", spec, heads)
    (weight,) = layer.weights()
    target = weight.forms[0][0].pieces[0].target.normal_(std=0.5)
    return layer, target.view(heads, spec.nope_dim + spec.v_dim, spec.kv_lora_rank)


def pool_of(spec: MLASpec, page_size: int, pages: int) -> MLAPool:
    """One layer."""
    kv = KVLayout(
        kind="mla", layers=1, page_size=page_size, kv_heads=1, head_dim=spec.latent_dim, dtype="float32", model="m"
    )
    shard = ShardLayout(kv=kv, tp_size=1, num_pages=pages)
    return MLAPool(shard, 0, PrivateMemory(shard.region_bytes(0), lambda nbytes: None))


def written_out(q: torch.Tensor, latents: torch.Tensor, weight: torch.Tensor, start: int) -> torch.Tensor:
    """q `[tokens, heads, nope + rope]`, latents `[all, rank + rope]` -> `[tokens, heads * v]`, in float64."""
    q, latents, weight = q.double(), latents.double(), weight.double()
    both = torch.einsum("kr,hdr->khd", latents[:, : SPEC.kv_lora_rank], weight)
    keys = torch.cat((both[..., : SPEC.nope_dim], latents[:, None, SPEC.kv_lora_rank :].expand(-1, HEADS, -1)), -1)
    scores = torch.einsum("qhd,khd->hqk", q, keys) * SCALE
    future = torch.arange(len(latents)) > start + torch.arange(len(q)).unsqueeze(1)
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, both[..., SPEC.nope_dim :]).flatten(1)


@given(rows, st.sampled_from([1, 2, 3, 16, 64]), st.integers(0, 1 << 30))
@settings(max_examples=100, deadline=None)
def test_any_mix_of_rows(shape: list[tuple[int, int]], page_size: int, seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    pages_of = [-(-(start + length) // page_size) for start, length in shape]
    pool = pool_of(SPEC, page_size, sum(pages_of) + 2)
    pool.poison()
    free = rng.sample(range(pool.layout.num_pages), pool.layout.num_pages)
    table = torch.full((len(shape), max(pages_of) + 1), pool.layout.num_pages + 7, dtype=torch.int32)
    history = []
    for index, (start, length) in enumerate(shape):
        mine = [free.pop() for _ in range(pages_of[index])]
        table[index, : len(mine)] = torch.tensor(mine, dtype=torch.int32)
        latents = torch.randn(start + length, SPEC.latent_dim)
        history.append(latents)
        for token in range(start):
            pool.layer(0)[mine[token // page_size], token % page_size] = latents[token]
    layer, weight = heads_of(SPEC, HEADS)
    backend = TorchNativeMLA(pool, heads=(layer,), scale=SCALE)
    positions = torch.cat([torch.arange(start, start + length) for start, length in shape])
    backend.prepare(AttentionBatch(tuple(AttentionRow(*row) for row in shape), table, positions))
    q = torch.randn(len(positions), HEADS, SPEC.qk_dim)
    out = backend.attend(0, q, torch.cat([latents[start:] for latents, (start, _) in zip(history, shape, strict=True)]))
    first = 0
    for latents, (start, length) in zip(history, shape, strict=True):
        expected = written_out(q[first : first + length], latents, weight, start)
        torch.testing.assert_close(out[first : first + length].double(), expected, rtol=1e-4, atol=1e-5)
        first += length


def flash_flops(q: torch.Size, k: torch.Size, v: torch.Size, *rest: object, **options: object) -> int:
    """Scores, then the mean of values."""
    batch, heads, queries, width = q
    return 2 * batch * heads * queries * k[-2] * (width + v[-1])


@pytest.mark.parametrize("context", [1024, 4096])
def test_decoding_expands_nothing(context: int) -> None:
    """Exactly: absorb the query, attend to latents, values of one mean. Expanding would be a hundred times as much."""
    spec = MLASpec(q_lora_rank=0, kv_lora_rank=512, nope_dim=128, rope_dim=64, v_dim=128, interleaved=True)
    heads = 8
    layer, _ = heads_of(spec, heads)
    backend = TorchNativeMLA(pool_of(spec, 16, context // 16 + 1), heads=(layer,), scale=0.1)
    table = torch.arange(context // 16 + 1, dtype=torch.int32).unsqueeze(0)
    backend.prepare(AttentionBatch((AttentionRow(context, 1),), table, torch.tensor([context])))
    formulas = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: flash_flops}
    with torch.inference_mode(), FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        backend.attend(0, torch.randn(1, heads, spec.qk_dim), torch.randn(1, spec.latent_dim))
    projections = 2 * heads * spec.kv_lora_rank * (spec.nope_dim + spec.v_dim)
    assert counter.get_total_flops() == projections + 2 * heads * (context + 1) * 2 * spec.latent_dim
    expansion = projections * (context + 1)
    assert counter.get_total_flops() < expansion / 50
