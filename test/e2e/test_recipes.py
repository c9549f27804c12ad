"""The recipes of the published deployments: their arithmetic, and their tiny twins as real clusters."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from sglang.cluster.cluster import Cluster
from sglang.cluster.recipe import build_recipe, find_recipe, load_recipe
from sglang.recipe_info import report
from support.ports import free_port
from support.sharded import tiny_model

FULL = ("deepseek_r1/tp8-1p3d", "deepseek_r1/dp8", "qwen3_coder/tp8-1p3d", "qwen3_coder/tp4-to-tp8")
KINDS = {"deepseek_r1": "deepseek-r1", "qwen3_coder": "qwen3-coder"}


@pytest.mark.parametrize("name", FULL)
def test_a_twin_has_the_topology_of_its_recipe(name: str) -> None:
    full, tiny = load_recipe(f"{name}.yaml"), load_recipe(f"{name}-tiny.yaml")
    assert len(full.prefill) == len(tiny.prefill) and len(full.frontends) == len(tiny.frontends)
    for mine, theirs in zip(full.engines, tiny.engines, strict=True):
        for size in ("tp_size", "dp_size", "ep_size", "enable_dp_attention"):
            assert (getattr(mine.config, size) > 1) == (getattr(theirs.config, size) > 1), size


def test_the_arithmetic_of_published_sizes() -> None:
    """480 billion parameters of two bytes over eight ranks; 62 layers x 8 heads x K and V x 128 x 2 bytes a token."""
    lines = list(report("qwen3_coder/tp4-to-tp8.yaml", 4096, 400.0))
    text = "\n".join(lines)
    assert "KV a token          253,952 bytes once" in text
    assert "weights a rank      120.269 GB in bfloat16" in text
    assert "prefill-0 -> decode-0, a prompt of 4,096 tokens (64 pages)" in text
    assert "31,744 of 32,768 bytes" in text, "64 pages x 62 layers x 8 destination ranks"
    assert "time at 400 Gbit/s a rank  5.20 ms" in text, "0.26 GB from the busiest rank"


def test_the_arithmetic_of_replicas_that_share_experts() -> None:
    """61 layers x 576 x 2 bytes of latents a token, once in the node; pages are striped over eight sources."""
    text = "\n".join(report("deepseek_r1/dp8.yaml", 4096, 400.0))
    assert "decode-0: decode, 8 replicas of 1 rank that share the experts (data-parallel attention)" in text
    assert "70,272 bytes once, 70,272 over the ranks of a replica" in text
    assert "3,904 of 73,728 bytes" in text, "64 pages x 61 layers"


def with_free_ports(content: dict[str, Any], model: Path) -> dict[str, Any]:
    """The recipe at ports that nobody uses."""
    content["defaults"]["model-path"] = str(model)
    for entry in content["prefill"] + content["decode"]:
        entry["port"] = free_port()
    content["prefill"][0]["disagg-bootstrap-port"] = free_port()
    return content


async def one_prompt(content: dict[str, Any], name: str) -> list[list[int]]:
    """What every frontend of the cluster answers to one prompt."""
    logs: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        recipe = build_recipe(content, name)
        cluster = await stack.enter_async_context(Cluster(recipe, on_log=lambda who, line: logs.append(line)))
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=120, trust_env=False))
        found = []
        for engine in recipe.frontends:
            body = {"input_ids": list(range(10, 60)), "sampling_params": {"temperature": 0, "max_new_tokens": 5}}
            answer = await http.post(f"{engine.url}/generate", json=body)
            assert answer.status_code == 200, answer.text
            found.append(answer.json()["output_ids"])
        moved = (await http.get(f"{cluster.engine_urls[0]}/metrics")).text
        assert "num_transfers_total" in moved and "fabric_rank_1_bytes_total" in moved
    return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FULL)
def test_a_twin_serves_a_prompt(name: str, tmp_path: Path) -> None:
    content = yaml.safe_load(find_recipe(f"{name}-tiny.yaml").read_text())
    model = tiny_model(KINDS[name.split("/")[0]], tmp_path)
    content["defaults"]["max-total-tokens"] = 512
    found = asyncio.run(one_prompt(with_free_ports(content, model), name))
    assert all(answer == found[0] and answer for answer in found)
