"""vLLM as a set-up of disagg_vs_mixed.py: its command, what is said without it, and a whole run against a fake."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import disagg_vs_mixed
import pd.setups
import peers.venvs
from pd import vllm
from pd.setups import vllm_two_cores
from pd.store import SWEEP, Store
from pd.summary import Curve, verdicts
from peers.venvs import Peer
from sglang.cluster.recipe import EngineSpec, build_recipe
from sglang.srt.errors import ConfigError
from support.ports import free_range

FAKE = Path(__file__).parents[1] / "support" / "fake_openai_server.py"
CONFIG = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
CONFIG |= {"num_key_value_heads": 2, "vocab_size": 100}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where peers' environments are: none was made."""
    monkeypatch.setattr(peers.venvs, "PLACE", tmp_path / ".peers")
    return tmp_path / ".peers"


@pytest.fixture
def report_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The whole command with records, figures and ports of the test's own."""
    monkeypatch.setattr(disagg_vs_mixed, "Store", partial(Store, folder=tmp_path / "results"))
    monkeypatch.setattr(disagg_vs_mixed, "FIGURES", tmp_path / "img")
    monkeypatch.setattr(disagg_vs_mixed, "LOG", tmp_path / "vllm.log")
    monkeypatch.setattr(pd.setups, "PORT", free_range(101))
    return tmp_path


def spec(folder: Path, chunk: int, dtype: pd.setups.Dtype) -> EngineSpec:
    """The recipe's engine for a model folder that holds a config alone."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (engine,) = build_recipe(vllm_two_cores(chunk, dtype).recipe(str(folder), 4096, 48), "test").frontends
    return engine


def flag(command: list[str], name: str) -> str:
    """The value behind a flag."""
    return command[command.index(name) + 1]


def fake_vllm(place: Path, *extra: str) -> None:
    """An environment whose python is the fake server, whatever module it is told to run."""
    folder = place / "vllm" / "bin"
    folder.mkdir(parents=True)
    (folder.parent / "ready").touch()
    script = folder / "python"
    told = "echo '(EngineCore) ERROR [core.py:1] ValueError: too little memory'\nseq -f 'leaked %g' 40"
    script.write_text(f'#!/bin/sh\nshift 2\n{told}\nexec {sys.executable} {FAKE} "$@" {" ".join(extra)}\n')
    script.chmod(0o755)


def measure(*flags: str) -> int:
    """The command, for vLLM alone, with a few requests a point."""
    quick = ["--rates", "40", "--seconds", "0.1", "--sweep-seconds", "0.1", "--torch-peers-dtype", "float32"]
    return disagg_vs_mixed.main(["--setups", "vllm 2c", "--shapes", "512-256", *quick, *flags])


def test_the_server_gets_both_cores_and_room_for_all_rows(tmp_path: Path, place: Path) -> None:
    command = vllm.VllmCommands().engine(spec(tmp_path, 0, "bfloat16"))
    server = str(place / "vllm" / "bin" / "python")
    variables = command[: command.index(server)]
    assert "VLLM_CPU_OMP_THREADS_BIND=0,1" in variables
    assert any(each.startswith("LD_PRELOAD=") for each in variables)
    assert command[command.index(server) :][:3] == [server, "-m", "vllm.entrypoints.openai.api_server"]
    assert "--no-enable-prefix-caching" in command
    assert "--max-num-batched-tokens" not in command, "its own default"
    wanted = {"--model": str(tmp_path), "--dtype": "bfloat16", "--max-num-seqs": "48", "--host": "127.0.0.1"}
    assert {name: flag(command, name) for name in wanted} == wanted
    assert int(flag(command, "--kv-cache-memory-bytes")) == 4096 * 2 * 2 * 2 * 16 * 2


def test_a_step_is_bounded_and_float32_needs_twice_the_room(tmp_path: Path, place: Path) -> None:
    command = vllm.VllmCommands().engine(spec(tmp_path, 64, "float32"))
    assert flag(command, "--max-num-batched-tokens") == "64"
    assert int(flag(command, "--kv-cache-memory-bytes")) == 4096 * 2 * 2 * 2 * 16 * 4


def test_there_is_no_balancer_over_it() -> None:
    with pytest.raises(ConfigError, match="without a balancer"):
        vllm.VllmCommands().router(None, [])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("features", "dtype"),
    [("avx2", "float32"), ("avx2 avx512_bf16", "bfloat16"), ("amx_tile", "bfloat16"), ("", "float32")],
)
def test_bfloat16_is_for_cpus_that_multiply_it(features: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "describe", lambda: {"features": features})
    assert vllm.default_dtype() == dtype


def test_set_ups_of_one_kind_have_records_of_their_own() -> None:
    setups = [vllm_two_cores(chunk, dtype) for chunk in (0, 64) for dtype in pd.setups.DTYPES]
    assert {setup.kind for setup in setups} == {"vllm 2c"} <= set(pd.setups.KINDS)
    assert len({Store("m").file("512-256", setup.name) for setup in setups}) == 4


@pytest.mark.usefixtures("place")
def test_without_vllm_it_is_named_and_the_rest_goes_on(
    report_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(disagg_vs_mixed, "Cluster")  # our own engines, if they were started, would run for minutes
    assert measure() == 0
    said = capsys.readouterr().err
    assert "vllm 2c is left out: not installed" in said
    assert "engine_vs_peers.py --setup-peers --peers vllm" in said
    assert not (report_folder / "results").exists()
    lines: list[str] = []
    assert vllm.kinds("float32", lines.append, Peer("ours", "ours.py"))[0](64).name.startswith("vllm 2c")
    assert not lines


def records_in(folder: Path) -> list[dict[str, Any]]:
    """What was kept of a run whose results go to `folder`."""
    return [json.loads(path.read_text()) for path in (folder / "results").rglob("*.json")]


def test_it_is_measured_and_shown_like_the_others(
    place: Path, report_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_vllm(place)
    assert measure("--parts", "loads") == 0
    printed = capsys.readouterr().out
    assert "| vllm 2c, float32, " in printed
    records = records_in(report_folder)
    assert {record["setup"] for record in records} == {
        "vllm 2c, float32, its own chunks",
        "vllm 2c, float32, 64 a step",
    }
    assert all(SWEEP in record["loads"] for record in records)
    (best,) = [record for record in records if "idle" in record["loads"]]
    point: dict[str, Any] = best["loads"]["40.0"]
    assert (point["completed"], point["failed"], point["output_tokens"], point["rate"]) == (6, 0, 6 * 256, 40.0)
    assert point["gaps"] == 6 * 255, "every token was seen when it came"
    assert (report_folder / "img" / "disagg_smollm2_512-256.png").is_file()
    capsys.readouterr()
    assert measure("--parts", "loads") == 0
    assert "req" not in capsys.readouterr().err, "what was measured is not measured again"


def test_a_server_that_dies_says_why(place: Path, report_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake_vllm(place, "--die-after", "0.3", "--ready-after", "60")
    assert measure("--parts", "loads") == 1
    said = capsys.readouterr().err
    assert "exited with code 7" in said
    assert "fatal: the fake engine gives up" in said
    assert "ValueError: too little memory" in said, "though 40 lines came after it"
    assert str(report_folder / "vllm.log") in said
    assert "fatal" in (report_folder / "vllm.log").read_text()


def test_verdicts_count_vllm_among_the_mixed() -> None:
    point = {"tpot_ms": [10.0], "ttft_ms": [100.0], "itl_ms": {"p50": 10.0, "p99": 20.0}, "completed": 1, "failed": 0}
    curves = [Curve(name, point, (1.0,), (point,)) for name in ("1P:1D", "vllm 2c, float32, 64 a step")]
    assert "| 1P:1D | vllm 2c, float32, 64 a step |" in verdicts(curves)


def test_its_users_are_watched_beside_prompts_like_the_others(
    place: Path, report_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_vllm(place)
    assert measure("--parts", "victims") == 0
    printed = capsys.readouterr().out
    assert "- vllm 2c, float32, its own chunks: ITL p50" in printed
    assert "- vllm 2c, float32, 64 a step: ITL p50" in printed
    records = records_in(report_folder)
    assert all(record["loads"]["victim"]["output_tokens"] >= 800 for record in records)
