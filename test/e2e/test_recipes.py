"""The recipes of the published deployments: their arithmetic, and their tiny twins as real clusters."""

import asyncio
import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from sglang.cluster.cluster import Cluster
from sglang.cluster.recipe import Recipe, build_recipe, find_recipe, load_recipe
from sglang.recipe_info import report
from support.engines import Engine
from support.ports import free_port, free_range
from support.sharded import tiny_model
from support.storm import wait_until

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
        entry["port"] = free_range(entry.get("count", 1))
    content["prefill"][0]["disagg-bootstrap-port"] = free_port()
    return content


def one_prompt(urls: Sequence[str]) -> list[list[int]]:
    """What every frontend answers to one prompt; the first engine has filled the KV of all."""
    found = []
    for url in urls[1:]:
        body = {"input_ids": list(range(10, 60)), "sampling_params": {"temperature": 0, "max_new_tokens": 5}}
        answer = httpx.post(f"{url}/generate", json=body, timeout=120, trust_env=False)
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["output_ids"])
    wait_until(lambda: sent_by_rank_1(urls[0]) > 0)  # its answer can be out before a prefill engine has counted it
    return found


def sent_by_rank_1(url: str) -> float:
    """Bytes that the second rank of a prefill engine has written to others."""
    text = httpx.get(f"{url}/metrics", timeout=120, trust_env=False).text
    found = re.search(r"^sglang:fabric_rank_1_bytes_total\S* (\S+)$", text, re.MULTILINE)
    assert found, text
    return float(found[1])


async def in_a_cluster(recipe: Recipe) -> list[list[int]]:
    """As launch_cluster runs it."""
    async with Cluster(recipe, on_log=lambda who, line: None) as cluster:
        return await asyncio.to_thread(one_prompt, cluster.engine_urls)


def forked(recipe: Recipe, model: Path) -> list[list[int]]:
    """Its engines with the flags that launch_cluster gives them, as forks: fresh, eight ranks cost 20 s of imports."""
    with contextlib.ExitStack() as stack:
        engines = [
            stack.enter_context(Engine(*spec.flags, model=model, port=spec.config.port)) for spec in recipe.engines
        ]
        return one_prompt([engine.wait_ready().url for engine in engines])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FULL)
def test_a_twin_serves_a_prompt(name: str, tmp_path: Path) -> None:
    content = yaml.safe_load(find_recipe(f"{name}-tiny.yaml").read_text())
    model = tiny_model(KINDS[name.split("/")[0]], tmp_path)
    content["defaults"]["max-total-tokens"] = 512
    recipe = build_recipe(with_free_ports(content, model), name)
    found = asyncio.run(in_a_cluster(recipe)) if name == "deepseek_r1/dp8" else forked(recipe, model)
    assert all(answer == found[0] and answer for answer in found)
