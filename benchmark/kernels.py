"""The native CPU kernels against torch, and against what this machine's memory gives.

    python benchmark/kernels.py [--rounds 11] [--only linear|small|attention|draw|sparse]

One thread. Contenders run in turn within a second; of each the fastest time and, against the first, the median of the
rounds' ratios. Times are the thread's CPU time, which other processes lengthen only through caches and memory.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch.nn import functional as F

from sglang.srt.core.layout import KVLayout, ShardLayout
from sglang.srt.kernels.cpu.ops import CpuKernels, DrawFilters, PackedWeight, levels, pack_weight
from sglang.srt.kernels.cpu.sparse import compute_experts, pack_experts, route
from sglang.srt.kv_pool.gqa import GQAPool
from sglang.srt.kv_pool.memory import PrivateMemory
from sglang.srt.layers.attention.base import AttentionBackend, AttentionBatch, AttentionRow
from sglang.srt.layers.attention.cpu import CpuAttention
from sglang.srt.layers.attention.torch_native import TorchNativeAttention

WORKING_SET = 64 << 20
"""Bytes of weights that a round walks through, so that they come from memory."""
KV_SET = 256 << 20
"""Bytes of KV likewise: pages lie scattered, and of 64 MiB a cache of 32 MiB would keep some."""
LINEAR = ((960, 576), (3072, 576), (576, 1536), (6144, 1024))
"""(outputs, inputs): SmolLM2-135M's and one of Qwen3-0.6B's."""
ROWS = (1, 4, 8, 16, 32, 512)
HEADS = ((9, 3, 64), (16, 8, 128), (8, 1, 128))
"""(query heads, KV heads, head dimension)."""


class Question(NamedTuple):
    """One line of the table; the first contender is the measure."""

    name: str
    nbytes: int
    """Read by one call."""
    contenders: dict[str, Callable[[], object]]
    calls: int
    """That one run of a contender makes."""


def memory() -> Iterator[Question]:
    """What the memory gives: reading, and McCalpin's triad (https://www.cs.virginia.edu/stream/)."""
    words = 32 << 20
    a, b, c = (torch.ones(words) for _ in range(3))
    whole = torch.ones(words, dtype=torch.int64)
    yield Question("read", whole.nbytes, {"torch": whole.sum}, 1)
    yield Question("triad", 3 * a.nbytes, {"torch": lambda: torch.add(b, c, alpha=2.0, out=a)}, 1)


def multiply_torch(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> None:
    """By oneDNN, through torch."""
    for weight in weights:
        torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def multiply(kernels: CpuKernels, x: torch.Tensor, weights: Sequence[PackedWeight]) -> None:
    """By ours."""
    for weight in weights:
        kernels.linear(x, weight)


def attend(backend: AttentionBackend, layers: int, q: torch.Tensor, kv: torch.Tensor) -> None:
    """All layers."""
    for layer in range(layers):
        backend.attend(layer, q, kv)


def linear() -> Iterator[Question]:
    """Packed bfloat16 products, against oneDNN's packed weights."""
    for outputs, inputs in LINEAR:
        copies = -(-WORKING_SET // (outputs * inputs * 2))
        weights = [torch.randn(outputs, inputs).bfloat16() for _ in range(copies)]
        theirs = [torch.ops.mkldnn._reorder_linear_weight(weight) for weight in weights]
        ours = [pack_weight(weight) for weight in weights]
        for rows in ROWS:
            x = torch.randn(rows, inputs).bfloat16()
            contenders: dict[str, Callable[[], object]] = {"onednn": partial(multiply_torch, x, theirs)}
            for level in levels()[2:]:
                contenders[level] = partial(multiply, CpuKernels(level), x, ours)
            yield Question(f"linear {outputs}x{inputs}, {rows} rows", outputs * inputs * 2, contenders, copies)


def gate_torch(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` by torch."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def rotate_torch(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary embedding by torch."""
    return torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, -1), sine)


def small() -> Iterator[Question]:
    """Norm, gated activation and rotary embedding of SmolLM2-135M's sizes, bfloat16."""
    kernels = CpuKernels(levels()[-1])
    for rows in (1, 8, 512):
        x, scale = torch.randn(rows, 576).bfloat16(), torch.randn(576).bfloat16()
        gate_up, heads = torch.randn(rows, 3072).bfloat16(), torch.randn(rows, 12, 64).bfloat16()
        tables = torch.randn(rows, 1, 64).bfloat16(), torch.randn(rows, 1, 64).bfloat16()
        pairs: tuple[tuple[str, torch.Tensor, Callable[[], object], Callable[[], object]], ...] = (
            ("norm 576", x, partial(F.rms_norm, x, (576,), scale, 1e-5), partial(kernels.rms_norm, x, scale, 1e-5)),
            ("silu_and_mul 1536", gate_up, partial(gate_torch, gate_up), partial(kernels.silu_and_mul, gate_up)),
            ("rotate 12 x 64", heads, partial(rotate_torch, heads, *tables), partial(kernels.rotate, heads, *tables)),
        )
        for name, data, theirs, ours in pairs:
            yield Question(f"{name}, {rows} rows", data.nbytes, {"torch": theirs, "native": ours}, 1)


def attention() -> Iterator[Question]:
    """A decode step's attention over bfloat16 pages of 16 tokens, context 512, page order shuffled."""
    context, page_size = 512, 16
    for heads, kv_heads, dim in HEADS:
        for rows in (1, 8, 16):
            token_bytes = kv_heads * 2 * dim * 2
            layers = max(1, KV_SET // (rows * context * token_bytes))
            layout = KVLayout(
                kind="gqa", layers=layers, page_size=page_size, kv_heads=kv_heads, head_dim=dim, dtype="bfloat16",
                model="m",
            )  # fmt: skip
            shard = ShardLayout(kv=layout, tp_size=1, num_pages=rows * context // page_size)
            pool = GQAPool(shard, 0, PrivateMemory(shard.region_bytes(0), lambda nbytes: None))
            first = pool.layer(0).normal_()
            for layer in range(1, layers):
                pool.layer(layer).copy_(first)
            table = torch.randperm(shard.num_pages).to(torch.int32).view(rows, -1)
            batch = AttentionBatch(
                (AttentionRow(context - 1, 1),) * rows, table, torch.full((rows,), context - 1, dtype=torch.int64)
            )
            theirs = TorchNativeAttention(pool, heads=heads, scale=dim**-0.5)
            ours = CpuAttention(
                pool, CpuKernels(levels()[-1]), theirs, heads=heads, scale=dim**-0.5, dtype=torch.bfloat16
            )
            q, kv = torch.randn(rows, heads, dim).bfloat16(), torch.randn(rows, 2, kv_heads, dim).bfloat16()
            theirs.prepare(batch)
            ours.prepare(batch)

            contenders: dict[str, Callable[[], object]] = {
                "torch": partial(attend, theirs, layers, q, kv),
                "native": partial(attend, ours, layers, q, kv),
            }
            yield Question(
                f"decode {heads}/{kv_heads} x {dim}, {rows} rows", rows * context * token_bytes, contenders, layers
            )


def draw_torch(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """As it is usually written: top-k by a selection, top-p by a sort, then multinomial."""
    scaled = logits.float() / temperature
    if top_k < logits.shape[1]:
        least = scaled.topk(top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < least, float("-inf"))
    probs = scaled.softmax(dim=-1)
    if top_p < 1.0:
        ordered, indices = probs.sort(dim=-1, descending=True)
        ordered[ordered.cumsum(dim=-1) - ordered >= top_p] = 0.0
        probs = torch.zeros_like(probs).scatter_(1, indices, ordered)
    return torch.multinomial(probs, 1)


def draw() -> Iterator[Question]:
    """A token of each row of 49,152 logits."""
    kernels, vocab = CpuKernels(levels()[-1]), 49152
    for rows in (1, 16):
        logits, place = (torch.randn(rows, vocab) * 3).bfloat16(), torch.rand(rows, dtype=torch.float64)
        for temperature, top_k, top_p in ((1.0, vocab, 1.0), (0.7, vocab, 0.9), (0.7, 50, 1.0), (0.7, 50, 0.9)):
            columns = ((temperature, torch.float32), (top_k, torch.int64), (top_p, torch.float32), (0, torch.float32))
            filters = DrawFilters(*(torch.full((rows,), value, dtype=kind) for value, kind in columns))
            contenders: dict[str, Callable[[], object]] = {
                "torch": partial(draw_torch, logits, temperature, top_k, top_p),
                "native": partial(kernels.draw, logits, filters, place),
            }
            name = f"draw t {temperature} k {top_k} p {top_p}, {rows} rows"
            yield Question(name, logits.nbytes, contenders, 1)


def experts_by_calls(
    kernels: CpuKernels, x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor, gate_up: Sequence[PackedWeight],
    down: Sequence[PackedWeight],
) -> torch.Tensor:  # fmt: skip
    """Sorted by torch, then three calls for each expert that was hit."""
    rows, top_k = chosen.shape
    order = chosen.flatten().argsort(stable=True)
    counts = chosen.flatten().bincount(minlength=len(down)).tolist()
    ordered, start = x[order // top_k], 0
    out = torch.zeros(ordered.shape)
    for one, two, count in zip(gate_up, down, counts, strict=True):
        if count:
            part = slice(start, start + count)
            out[part] = kernels.linear(kernels.silu_and_mul(kernels.linear(ordered[part], one)), two)
            start += count
    placed = torch.empty_like(out)
    placed[order] = out
    return torch.bmm(shares.unsqueeze(1), placed.view(rows, top_k, -1)).squeeze(1)


def route_torch(x: torch.Tensor, vectors: torch.Tensor, top_k: int) -> object:
    """The likeliest experts of each row."""
    return F.linear(x.float(), vectors).softmax(dim=-1).topk(top_k, dim=-1)


def sparse() -> Iterator[Question]:
    """The experts of a layer of Qwen3-30B-A3B, and its router; rows choose at random."""
    kernels, experts, top_k, hidden, width = CpuKernels(levels()[-1]), 128, 8, 2048, 768
    gate_up = [pack_weight(torch.randn(2 * width, hidden).bfloat16()) for _ in range(experts)]
    down = [pack_weight(torch.randn(hidden, width).bfloat16()) for _ in range(experts)]
    block, vectors = pack_experts(gate_up, down, 0), torch.randn(experts, hidden)
    for rows in (1, 4, 16, 64):
        x = torch.randn(rows, hidden).bfloat16()
        chosen, shares = torch.rand(rows, experts).topk(top_k).indices, torch.rand(rows, top_k)
        contenders: dict[str, Callable[[], object]] = {
            "calls": partial(experts_by_calls, kernels, x, chosen, shares, gate_up, down),
            "one call": partial(compute_experts, kernels, x, chosen, shares, block),
        }
        hit = len(set(chosen.flatten().tolist()))
        yield Question(f"{hit} experts, {rows} rows", hit * 3 * width * hidden * 2, contenders, 1)
        scored: dict[str, Callable[[], object]] = {
            "torch": partial(route_torch, x, vectors, top_k),
            "native": partial(route, kernels, x, vectors, top_k, normalize=True, scale=1.0),
        }
        yield Question(f"router, {rows} rows", vectors.nbytes, scored, 1)


def answer(question: Question, rounds: int) -> str:
    """One line."""
    times: dict[str, list[float]] = {name: [] for name in question.contenders}
    repeats = max(1, 20 // question.calls)
    for _ in range(rounds):
        for name, run in question.contenders.items():
            start = time.thread_time()
            for _ in range(repeats):
                run()
            times[name].append((time.thread_time() - start) / repeats / question.calls)
    (first, measure), *others = times.items()
    parts = [f"{question.name:36} {first} {min(measure) * 1e6:8.1f} us"]
    parts.append(f"{question.nbytes / min(measure) / 1e9:5.1f} GB/s")
    for name, found in others:
        ratio = statistics.median(a / b for a, b in zip(measure, found, strict=True))
        parts.append(
            f"| {name} {min(found) * 1e6:8.1f} us {question.nbytes / min(found) / 1e9:5.1f} GB/s, x{ratio:.2f}"
        )
    return " ".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line a question."""
    sections = {"linear": linear, "small": small, "attention": attention, "draw": draw, "sparse": sparse}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", choices=list(sections))
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    for question in memory():
        print(answer(question, args.rounds))
    for name, section in sections.items():
        if args.only in (None, name):
            for question in section():
                print(answer(question, args.rounds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
