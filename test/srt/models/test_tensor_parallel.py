"""Two ranks, as threads with a barrier between them, compute what one computes."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from sglang.srt.config.model import read_model_spec
from sglang.srt.core.layout import ShardLayout
from sglang.srt.distributed.groups import ParallelGroup
from sglang.srt.errors import ConfigError
from sglang.srt.kv_pool.gqa import GQAPool
from sglang.srt.kv_pool.layout import kv_layout
from sglang.srt.kv_pool.memory import PrivateMemory
from sglang.srt.layers.attention.base import AttentionBatch, AttentionRow
from sglang.srt.layers.attention.torch_native import TorchNativeAttention
from sglang.srt.layers.parameter import LayerContext
from sglang.srt.model_executor.hooks import NullHook
from sglang.srt.models.base import ModelInput
from sglang.srt.models.registry import build_model
from sglang.srt.models.weights import load_model
from support.tiny_models import make_checkpoint, reference_logits


class Exchange:
    """What the ranks of a group share: a slot each, and a barrier before and after reading them."""

    def __init__(self, size: int) -> None:
        self.slots: list[torch.Tensor] = [torch.empty(0)] * size
        self.barrier = threading.Barrier(size, timeout=20)


class ThreadCollectives:
    """Collectives of one rank over an Exchange."""

    def __init__(self, exchange: Exchange, rank: int) -> None:
        self._exchange = exchange
        self._rank = rank

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum."""
        return self._join(tensor, lambda parts: torch.stack(parts).sum(0))

    def all_gather_last(self, tensor: torch.Tensor) -> torch.Tensor:
        """Concatenation."""
        return self._join(tensor, lambda parts: torch.cat(parts, dim=-1))

    def _join(self, tensor: torch.Tensor, how: Callable[[list[torch.Tensor]], torch.Tensor]) -> torch.Tensor:
        self._exchange.slots[self._rank] = tensor
        self._exchange.barrier.wait()
        joined = how(self._exchange.slots)
        self._exchange.barrier.wait()
        return joined


def logits_of_rank(folder: Path, rank: int, size: int, exchange: Exchange, tokens: list[int]) -> torch.Tensor:
    """Prefill in two chunks on one rank; logits of the second."""
    spec = read_model_spec(folder)
    model = build_model(spec, LayerContext(torch.float32, ParallelGroup(rank, size), ThreadCollectives(exchange, rank)))
    load_model(model, folder)
    layout = kv_layout(spec, page_size=4, dtype="float32", model="m")
    shard = ShardLayout(kv=layout, tp_size=size, num_pages=8)
    pool = GQAPool(shard, rank, PrivateMemory(shard.region_bytes(rank), lambda nbytes: None))
    backend = TorchNativeAttention(pool, heads=spec.num_heads // size, scale=spec.attention_scale)
    logits = torch.empty(0)
    with torch.inference_mode():
        for start, length in ((0, 9), (9, len(tokens) - 9)):
            positions = torch.arange(start, start + length)
            table = torch.arange(8, dtype=torch.int32).flip(0).unsqueeze(0)
            backend.prepare(AttentionBatch((AttentionRow(start, length),), table, positions))
            inputs = ModelInput(torch.tensor(tokens[start : start + length]), positions, torch.arange(length))
            found = model.forward(inputs, backend, NullHook())
            assert found is not None
            logits = found
    return logits


@pytest.mark.parametrize(("kv_heads", "tied"), [(2, True), (2, False), (1, True)])
def test_two_ranks_are_one_model(tmp_path: Path, kv_heads: int, tied: bool) -> None:
    """With one KV head both ranks hold it."""
    model = make_checkpoint(
        tmp_path, "llama", hidden_size=48, num_attention_heads=4, num_key_value_heads=kv_heads, head_dim=12,
        intermediate_size=50, vocab_size=90, num_hidden_layers=2, tie_word_embeddings=tied,
        attention_bias=True, mlp_bias=True,
    )  # fmt: skip
    tokens = list(range(3, 24))
    exchange = Exchange(2)
    with ThreadPoolExecutor(2) as threads:
        ranks = [threads.submit(logits_of_rank, tmp_path, rank, 2, exchange, tokens) for rank in range(2)]
        found = [rank.result(timeout=60) for rank in ranks]
    expected = reference_logits(model, tokens)[9:]
    assert torch.equal(found[0], found[1])
    assert float((found[0] - expected).abs().max() / expected.abs().max()) < 1e-4


def test_sizes_that_cannot_be_shared() -> None:
    with pytest.raises(ConfigError, match="--tp-size 2 does not divide the model's 9 attention heads"):
        ParallelGroup(0, 2).share(9, "attention heads")
    with pytest.raises(ConfigError, match="--tp-size 4 is no multiple of the model's 3 KV heads"):
        ParallelGroup(0, 4).kv_share(3)
    assert [ParallelGroup(rank, 4).kv_share(2).start for rank in range(4)] == [0, 0, 1, 1]
