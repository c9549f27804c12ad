"""Two ranks, as threads with a barrier between them, compute what one computes."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from sglang.srt.config.model import ModelSpec, read_model_spec
from sglang.srt.core.layout import ShardLayout
from sglang.srt.distributed.collectives import SoloCollectives
from sglang.srt.distributed.groups import ParallelGroup
from sglang.srt.errors import ConfigError
from sglang.srt.kv_pool.layout import kv_layout
from sglang.srt.kv_pool.memory import PrivateMemory
from sglang.srt.kv_pool.open import open_pool
from sglang.srt.layers.attention.base import AttentionBatch, AttentionRow
from sglang.srt.layers.attention.open import open_attention
from sglang.srt.layers.moe.share import expert_share
from sglang.srt.layers.parameter import ExpertRanks, LayerContext
from sglang.srt.model_executor.hooks import NullHook
from sglang.srt.models.base import CausalLM, ModelInput
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

    def all_to_all(self, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Each rank's share of every other's rows."""
        size = len(self._exchange.slots)
        cuts = [list(counts[sender * size : (sender + 1) * size]) for sender in range(size)]
        return self._join(
            rows, lambda parts: torch.cat([p.split(cut)[self._rank] for p, cut in zip(parts, cuts, strict=True)])
        )

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
    forward = forward_of(spec, model, ParallelGroup(rank, size))
    forward(tokens[:9], 0, wanted=True)
    found = forward(tokens[9:], 9, wanted=True)
    assert found is not None
    return found


Forward = Callable[..., torch.Tensor | None]


def forward_of(spec: ModelSpec, model: CausalLM, group: ParallelGroup) -> Forward:
    """`forward(tokens, start, wanted=...)` of one prompt in a pool of its own."""
    layout = kv_layout(spec, page_size=4, dtype="float32", model="m")
    shard = ShardLayout(kv=layout, tp_size=group.size, num_pages=8)
    pool = open_pool(shard, group.rank, PrivateMemory(shard.region_bytes(group.rank), lambda nbytes: None))
    backend = open_attention(spec, pool, model.latent_heads(), group.size, dtype=torch.float32)
    table = torch.arange(8, dtype=torch.int32).flip(0).unsqueeze(0)

    @torch.inference_mode()
    def forward(tokens: list[int], start: int, *, wanted: bool) -> torch.Tensor | None:
        length = len(tokens)
        positions = torch.arange(start, start + length)
        backend.prepare(AttentionBatch((AttentionRow(start, length),), table, positions))
        inputs = ModelInput(torch.tensor(tokens), positions, torch.arange(length) if wanted else None)
        return model.forward(inputs, backend, NullHook())

    return forward


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


@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v2_lite", "qwen3_moe"])
def test_replicas_that_share_experts_are_each_the_whole_model(tmp_path: Path, name: str) -> None:
    """Uneven rounds: a chunk that wants no logits beside a prompt that does, then a chunk beside nothing."""
    kind, rope, config = SPARSE[name]
    reference = make_checkpoint(tmp_path, kind, rope_parameters=ROPES[rope], **config)
    spec, exchange = read_model_spec(tmp_path), Exchange(2)
    long, short = list(range(3, 24)), list(range(40, 47))

    def replica(rank: int) -> torch.Tensor | None:
        ranks = ExpertRanks(ParallelGroup(rank, 2), ThreadCollectives(exchange, rank))
        model = build_model(spec, LayerContext(torch.float32, ParallelGroup(), SoloCollectives(), 2, ranks))
        load_model(model, tmp_path, spec)
        forward = forward_of(spec, model, ParallelGroup())
        with torch.inference_mode():
            if rank == 0:
                assert forward(long[:9], 0, wanted=False) is None
                return forward(long[9:], 9, wanted=True)
            found = forward(short, 0, wanted=True)
            model.idle()
            return found

    with ThreadPoolExecutor(2) as threads:
        jobs = [threads.submit(replica, rank) for rank in range(2)]
        found = [job.result(timeout=60) for job in jobs]
    for logits, expected in zip(
        found, (reference_logits(reference, long)[9:], reference_logits(reference, short)), strict=True
    ):
        assert logits is not None
        assert float((logits - expected).abs().max() / expected.abs().max()) < 1e-4


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
