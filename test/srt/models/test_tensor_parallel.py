"""Two ranks, as threads with a barrier between them, compute what one computes."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from sglang.srt.config.model import read_model_spec
from sglang.srt.core.layout import ShardLayout
from sglang.srt.distributed.groups import ParallelGroup
from sglang.srt.errors import ConfigError
from sglang.srt.kv_pool.layout import kv_layout
from sglang.srt.kv_pool.memory import PrivateMemory
from sglang.srt.kv_pool.open import open_pool
from sglang.srt.layers.attention.base import AttentionBatch, AttentionRow
from sglang.srt.layers.attention.open import open_attention
from sglang.srt.layers.moe.share import expert_share
from sglang.srt.layers.parameter import LayerContext
from sglang.srt.model_executor.hooks import NullHook
from sglang.srt.models.base import ModelInput
from sglang.srt.models.registry import build_model
from sglang.srt.models.weights import load_model
from support.tiny_models import ROPES, SPARSE, make_checkpoint, reference_logits


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

    def broadcast(self, tensor: torch.Tensor) -> None:
        """From rank 0."""
        tensor.copy_(self._join(tensor.clone(), lambda parts: parts[0]))

    def barrier(self) -> None:
        """Wait for all."""
        self._exchange.barrier.wait()

    def _join(self, tensor: torch.Tensor, how: Callable[[list[torch.Tensor]], torch.Tensor]) -> torch.Tensor:
        self._exchange.slots[self._rank] = tensor
        self._exchange.barrier.wait()
        joined = how(self._exchange.slots)
        self._exchange.barrier.wait()
        return joined


def logits_of_rank(
    folder: Path, rank: int, size: int, exchange: Exchange, tokens: list[int], ep_size: int = 1
) -> torch.Tensor:
    """Prefill in two chunks on one rank; logits of the second."""
    spec = read_model_spec(folder)
    collectives = ThreadCollectives(exchange, rank)
    model = build_model(spec, LayerContext(torch.float32, ParallelGroup(rank, size), collectives, ep_size))
    load_model(model, folder, spec)
    layout = kv_layout(spec, page_size=4, dtype="float32", model="m")
    shard = ShardLayout(kv=layout, tp_size=size, num_pages=8)
    pool = open_pool(shard, rank, PrivateMemory(shard.region_bytes(rank), lambda nbytes: None))
    backend = open_attention(spec, pool, model.latent_heads(), size)
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
    check_ranks(tmp_path, model, 2)


def check_ranks(folder: Path, model: PreTrainedModel, size: int, ep_size: int = 1) -> None:
    """All ranks answer the same, and that is transformers' answer."""
    tokens = list(range(3, 24))
    exchange = Exchange(size)
    with ThreadPoolExecutor(size) as threads:
        ranks = [threads.submit(logits_of_rank, folder, rank, size, exchange, tokens, ep_size) for rank in range(size)]
        found = [rank.result(timeout=60) for rank in ranks]
    expected = reference_logits(model, tokens)[9:]
    assert all(torch.equal(found[0], other) for other in found[1:])
    assert float((found[0] - expected).abs().max() / expected.abs().max()) < 1e-4


@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v2_lite", "qwen3_moe"])
@pytest.mark.parametrize(("size", "ep_size"), [(2, 1), (2, 2), (4, 2)])
def test_ranks_share_experts_by_columns_or_whole(tmp_path: Path, name: str, size: int, ep_size: int) -> None:
    kind, rope, config = SPARSE[name]
    check_ranks(tmp_path, make_checkpoint(tmp_path, kind, rope_parameters=ROPES[rope], **config), size, ep_size)


def test_which_experts_a_rank_holds() -> None:
    shares = [expert_share(ParallelGroup(rank, 4), 2, 6, 10) for rank in range(4)]
    assert [(s.experts, s.columns) for s in shares] == [
        (range(3), range(5)), (range(3), range(5, 10)), (range(3, 6), range(5)), (range(3, 6), range(5, 10)),
    ]  # fmt: skip
    for group, ep_size, message in (
        (ParallelGroup(0, 4), 3, "--ep-size 3 does not divide --tp-size 4"),
        (ParallelGroup(0, 4), 4, "--ep-size 4 does not divide the model's 6 experts"),
        (ParallelGroup(0, 4), 1, "--tp-size 4 with --ep-size 1 does not divide the model's 10 expert columns"),
    ):
        with pytest.raises(ConfigError, match=message):
            expert_share(group, ep_size, 6, 10)


def test_sizes_that_cannot_be_shared() -> None:
    with pytest.raises(ConfigError, match="--tp-size 2 does not divide the model's 9 attention heads"):
        ParallelGroup(0, 2).share(9, "attention heads")
    with pytest.raises(ConfigError, match="--tp-size 4 is no multiple of the model's 3 KV heads"):
        ParallelGroup(0, 4).kv_share(3)
    assert [ParallelGroup(rank, 4).kv_share(2).start for rank in range(4)] == [0, 0, 1, 1]
