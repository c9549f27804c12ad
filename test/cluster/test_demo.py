"""The demo over fake engines: what it prints, and when it says that it failed."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from sglang.cluster.recipe import EngineSpec, RouterSpec
from sglang.demo import main

SERVER = Path(__file__).parents[1] / "support" / "fake_openai_server.py"


class FakeCommands:
    """Fake engines; the recipe has no balancer."""

    def __init__(self, flags: Sequence[str] = ()) -> None:
        self._flags = flags

    def engine(self, spec: EngineSpec) -> list[str]:
        return [sys.executable, str(SERVER), "--port", str(spec.config.port), *self._flags]

    def router(self, spec: RouterSpec, workers: Sequence[EngineSpec]) -> list[str]:
        raise NotImplementedError


@pytest.fixture
def recipe(tmp_path: Path, free_ports: list[int]) -> str:
    """One prefill and one decode engine over a folder that looks like a model's."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "kano": 1, "tola": 2, "a": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text("{}")
    content = {
        "defaults": {"model-path": str(tmp_path)},
        "prefill": [{"port": free_ports[0], "disagg-bootstrap-port": free_ports[1]}],
        "decode": [{"port": free_ports[2]}],
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def run(recipe: str, tmp_path: Path, *flags: str) -> int:
    """The demo with fake engines that take `flags`."""
    return main([recipe, "--num-prompts", "6", "--log-dir", str(tmp_path / "logs")], FakeCommands(flags))


def test_it_shows_an_answer_and_a_table(recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(recipe, tmp_path) == 0
    printed = capsys.readouterr().out
    assert "1 prefill, 1 decode engines behind http://127.0.0.1:" in printed
    assert "tok tok tok" in printed
    assert "Successful requests:                      6" in printed
    assert "KV posted before its forward ended (%):   95.0" in printed
    assert "listening on" in (tmp_path / "logs" / "decode-0.log").read_text()


def test_an_engine_that_dies_fails_it(recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(recipe, tmp_path, "--die-after", "0.1", "--ready-after", "9") == 1
    assert "exited with code 7" in capsys.readouterr().err


def test_failed_requests_fail_it(recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(recipe, tmp_path, "--refuse-native") == 1
    assert "the warm-up failed: HTTP 503" in capsys.readouterr().err


def test_a_missing_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.yaml").write_text("unified: [{port: 31100, model-path: nowhere}]")
    assert main([str(tmp_path / "r.yaml")]) == 2
    assert "no model in nowhere" in capsys.readouterr().err


def test_help_needs_no_engine() -> None:
    assert subprocess.run([sys.executable, "-m", "sglang.demo", "--help"], capture_output=True).returncode == 0
