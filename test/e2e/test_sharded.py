"""Real processes over tcp, sharded in every combination: answers equal those of one rank, source ranks share the load.

Byte-exact pages and exact weights: test/srt/disaggregation/messenger/test_sharded_pools.py.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sglang.srt.config.model_moe import MoESpec
from sglang.srt.layers.moe import router
from sglang.srt.layers.moe.router import Choice
from support.driver import Driver, Request
from support.engines import Engine
from support.sharded import FLAGS, SEEDS, answers, assert_equal, check_pairs, prompts, tiny_model

Chooser = Callable[[torch.Tensor, MoESpec, torch.Tensor | None], Choice]
SHARED = "--tp 2 --dp 2 --enable-dp-attention --ep-size 2"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3-coder", "deepseek-r1"])
def test_no_prompt_hangs_on_rounding(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Router scores moved by more than a batch moves them choose the same experts for every token."""
    noise = torch.Generator().manual_seed(0)
    seen: list[int] = []

    def watched(choose: Chooser) -> Chooser:
        def chosen(logits: torch.Tensor, spec: MoESpec, correction: torch.Tensor | None) -> Choice:
            experts, weights = choose(logits, spec, correction)
            for _ in range(16):
                moved = logits + 3e-6 * (2 * torch.rand(logits.shape, generator=noise) - 1)
                again = choose(moved, spec, correction)[0]
                assert torch.equal(again.sort(dim=-1).values, experts.sort(dim=-1).values), "two experts are as near"
            seen.append(len(logits))
            return experts, weights

        return chosen

    for routing, choose in list(router._CHOOSERS.items()):
        monkeypatch.setitem(router._CHOOSERS, routing, watched(choose))
    driver = Driver(tiny_model(kind, tmp_path), page_size=4, pages=16_000)
    for seed in SEEDS:
        for prompt in prompts(seed):
            driver.run([Request(prompt, 6)], chunk=128)
    assert sum(seen) > 48 * 60


def test_one_rank_to_two_and_two_to_one(tmp_path: Path) -> None:
    check_pairs(tiny_model("qwen3-coder", tmp_path), ["--tp 1", "--tp 2"], ["--tp 1", "--tp 2"], [1, 2])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["qwen3-coder", "deepseek-r1"])
def test_every_pair_of_1_2_and_4_ranks(kind: str, tmp_path: Path) -> None:
    """qwen3-coder has two KV heads, so four ranks hold each of them twice; deepseek-r1's latents are on every rank."""
    sizes = ["--tp 1", "--tp 2", "--tp 4"]
    check_pairs(tiny_model(kind, tmp_path), sizes, sizes, [1, 2, 4])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["qwen3-coder", "deepseek-r1"])
def test_experts_by_parts_answer_as_experts_by_columns(kind: str, tmp_path: Path) -> None:
    check_pairs(tiny_model(kind, tmp_path), ["--tp 2 --ep-size 2"], ["--tp 4 --ep-size 2"], [2])


def test_replicas_to_replicas(tmp_path: Path) -> None:
    """Every decode replica is a peer of every prefill replica."""
    check_pairs(tiny_model("qwen3-coder", tmp_path), ["--dp 2"], ["--dp 2"], [1])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_latents_of_four_ranks_to_four_replicas(tmp_path: Path) -> None:
    """All four source ranks hold every latent: their pages are striped over all."""
    check_pairs(tiny_model("deepseek-r1", tmp_path), ["--tp 4"], ["--dp 4"], [4])


@pytest.mark.slow
def test_pools_of_two_ranks_through_mapped_memory(tmp_path: Path) -> None:
    """The receiver reads each rank's memfd itself."""
    check_pairs(
        tiny_model("qwen3-coder", tmp_path),
        ["--tp 2 --disagg-provider mapped"],
        ["--tp 1 --disagg-provider mapped"],
        [2],
    )


@pytest.mark.parametrize("kind", [pytest.param("qwen3-coder", marks=pytest.mark.slow), "deepseek-r1"])
def test_replicas_that_share_experts_answer_as_one_rank(kind: str, tmp_path: Path) -> None:
    """One prompt after the other keeps one replica busy and the other idle; then all at once, on both."""
    model, asked = tiny_model(kind, tmp_path), prompts(SEEDS[0])
    with Engine(*FLAGS, *SHARED.split(), model=model) as engine, Engine(*FLAGS, model=model) as alone:
        expected = answers(alone.wait_ready(), asked)
        engine.wait_ready()
        for index in (1, 4):
            assert_equal(answers(engine, asked[index : index + 1]), expected[index : index + 1], f"alone {index}")
        assert_equal(answers(engine, asked), expected, "all at once")
        assert engine.stop() == 0, "both replicas leave in order"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["qwen3-coder", "deepseek-r1"])
def test_replicas_that_share_experts_on_either_side(kind: str, tmp_path: Path) -> None:
    """Each replica is a peer; ranks of one engine and replicas of another hold the same KV."""
    four = SHARED.replace("2", "4")
    check_pairs(tiny_model(kind, tmp_path), [SHARED, "--tp 2"], [SHARED, four], [1, 2])
