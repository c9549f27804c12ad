"""Recipes: what they say is what is started, and what is wrong is named."""

import os
from pathlib import Path
from typing import Any

import pytest

from sglang.cluster.cluster import plan
from sglang.cluster.commands import ModuleCommands
from sglang.cluster.recipe import build_recipe, find_recipe, load_recipe, named_ports
from sglang.launch_cluster import main
from sglang.srt.errors import ConfigError

CORE = min(os.sched_getaffinity(0))


def good() -> dict[str, Any]:
    """A recipe with everything in it."""
    return {
        "defaults": {"model-path": "m", "threads": 1, "page_size": 32},
        "prefill": [{"port": 31000, "disagg-bootstrap-port": 31900}, {"port": 31001, "disagg-bootstrap-port": 31901}],
        "decode": [{"port": 31100, "count": 2, "cores": [[CORE], [CORE]], "page-size": 16}],
        "router": {"port": 30000, "policy": "cache_aware", "flags": {"cache-threshold": 0.3, "disable-retries": True}},
    }


def test_sections_defaults_counts_and_peers() -> None:
    recipe = build_recipe(good(), "r.yaml")
    assert [spec.name for spec in recipe.engines] == ["prefill-0", "prefill-1", "decode-0", "decode-1"]
    assert [spec.config.port for spec in recipe.engines] == [31000, 31001, 31100, 31101]
    assert {spec.config.page_size for spec in recipe.prefill} == {32}
    for decode in recipe.frontends:
        assert decode.config.disagg_mode == "decode"
        assert decode.config.disagg_prefill == ("127.0.0.1:31900", "127.0.0.1:31901")
        assert decode.config.cpu_cores == (CORE,)
        assert decode.config.page_size == 16
    assert recipe.url == "http://127.0.0.1:30000"
    assert {port for _, _, port in named_ports(recipe)} == {31000, 31001, 31900, 31901, 31100, 31101, 30000, 29000}


def test_commands() -> None:
    commands = dict(plan(build_recipe(good(), "r.yaml"), ModuleCommands()))
    decode = commands["decode-1"]
    assert decode[2:4] == ["-m", "sglang.launch_server"]
    for flag, value in (("--port", "31101"), ("--disagg-mode", "decode"), ("--cpu-cores", str(CORE))):
        assert decode[decode.index(flag) + 1] == value
    router = " ".join(commands["router"])
    assert "--worker-urls http://127.0.0.1:31100 http://127.0.0.1:31101" in router
    assert "--host 127.0.0.1 --port 30000 --policy cache_aware" in router
    assert router.endswith("--log-level warn --cache-threshold 0.3 --disable-retries")


def test_names_and_no_router() -> None:
    unified = [{"port": 31100, "name": "left"}, {"port": 31102, "name": "right", "count": 2}]
    recipe = build_recipe({"defaults": {"model-path": "m"}, "unified": unified}, "r.yaml")
    assert [spec.name for spec in recipe.engines] == ["left", "right-0", "right-1"]
    assert recipe.url == "http://127.0.0.1:31100"
    assert [name for name, _ in plan(recipe, ModuleCommands())] == ["left", "right-0", "right-1"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"engines": []}, "r.yaml: Object contains unknown field `engines`"),
        ({"router": {"prot": 1}}, "r.yaml: Object contains unknown field `prot` - at `$.router`"),
        ({"router": {"policy": "best"}}, "Invalid enum value 'best' - at `$.router.policy`"),
        ({"defaults": {"model-path": "m", "pagesize": 1}}, "r.yaml: defaults: unknown setting pagesize"),
        ({"decode": [{"port": 31100, "thread": 1}]}, "r.yaml: decode[0]: unknown setting thread"),
        ({"decode": [{"port": 31100, "page-size": 0}]}, "r.yaml: decode[0]: --page-size"),
        ({"decode": [{"port": 31100, "page-size": "big"}]}, "r.yaml: decode[0]: --page-size"),
        ({"decode": [{"port": 31100, "disagg-mode": "prefill"}]}, "decode[0]: the section decides disagg-mode"),
        ({"decode": [{"port": 31100, "count": 0}]}, "decode[0]: count must be a whole number"),
        ({"decode": [{"port": 31100, "count": 2, "cores": [[CORE]]}]}, "decode[0]: cores has 1 lists for 2 engines"),
        ({"decode": [{"port": 31100, "cores": [4095]}]}, "decode[0]: --cpu-cores: this process may not use core 4095"),
        ({"decode": [{"port": 31000}]}, "port 31000 is given to both prefill-0 and decode-0"),
        ({"decode": [{"port": 0}]}, "decode-0 needs a `port` other than 0"),
        ({"decode": [{"port": 31100, "name": "prefill-0"}]}, "two engines have the same `name`"),
        ({"decode": None}, "names no engine that answers clients"),
        ({"unified": [{"port": 31300}]}, "do not go beside"),
        ({"prefill": None}, "decode[0]: --disagg-prefill"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_recipe(good() | change, "r.yaml")
    assert complaint in str(caught.value)


@pytest.mark.parametrize("content", [[1], "text", {"prefill": {"port": 1}}])
def test_a_wrong_shape_is_named(content: object) -> None:
    with pytest.raises(ConfigError, match=r"r\.yaml: Expected"):
        build_recipe(content, "r.yaml")


def test_the_packages_recipes_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipes = sorted((find_recipe("tiny/smollm2-1p2d.yaml").parents[1]).rglob("*.yaml"))
    assert len(recipes) >= 2
    for path in recipes:
        recipe = load_recipe(str(path))
        assert recipe.frontends, path
        assert recipe.router is not None or path.parent.name != "tiny", "one machine, one address"
    assert find_recipe("recipes/tiny/smollm2-1p2d.yaml") == find_recipe("tiny/smollm2-1p2d.yaml")


def test_dry_run_prints_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dry-run", "tiny/smollm2-1p2d.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "--disagg-prefill 127.0.0.1:31900" in lines[1]


def test_an_unreadable_recipe_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_text("decode: [")
    assert main([str(tmp_path / "bad.yaml")]) == 2
    assert main(["nowhere.yaml"]) == 2
    printed = capsys.readouterr().err
    assert "bad.yaml: while parsing" in printed
    assert "no recipe nowhere.yaml" in printed
