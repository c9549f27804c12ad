"""Command line and configuration file: what wins, what is refused, and that every refusal names its flag."""

from pathlib import Path

import msgspec
import pytest

from sglang.srt.config import cli
from sglang.srt.config.flags import GROUPS
from sglang.srt.config.hardware import Hardware
from sglang.srt.config.resolve import resolve
from sglang.srt.config.server import ServerConfig
from sglang.srt.errors import ConfigError

MACHINE = Hardware(cores=(0, 1), memory_bytes=1 << 30, no_color=False)


def test_defaults_are_sglangs_and_empty_names_are_completed() -> None:
    config = cli.parse(["--model-path", "folder"])
    assert (config.host, config.port) == ("127.0.0.1", 30000)
    assert config.served_model_name == config.tokenizer_path == "folder"
    assert config.disagg_mode == "null"


def test_every_setting_has_a_flag() -> None:
    flags = [flag.field for _, group in GROUPS for flag in group]
    assert sorted([*flags, "dp_rank"]) == sorted(ServerConfig.__struct_fields__), "the launcher alone numbers replicas"


def test_help_teaches_and_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.parse(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "disaggregation:" in text and "--chunked-prefill-size" in text and "--speculative" not in text
    assert "--disagg-send" not in text, "a flag of an experiment"


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("model-path: a\npage_size: 8\nport: 1234\nenable-metrics: true\ncpu-cores: 0\n")
    config = cli.parse(["--config", str(file), "--port", "4321", "--no-enable-metrics"])
    assert (config.model_path, config.page_size, config.port, config.enable_metrics) == ("a", 8, 4321, False)
    assert config.cpu_cores == (0,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("model-path: a\npagesize: 8\nfoo: 1\n", "unknown setting foo, pagesize"),
        ("- a\n", "must hold"),
        ("model-path: [a\n", "not YAML"),
        ("model-path: a\nport: yes\n", "--port: expected `int`"),
        ("model-path: a\nspeculative-algorithm: EAGLE\n", "--speculative-algorithm EAGLE: not supported yet"),
        ("model-path: a\nenable-trace: true\n", "--enable-trace: use --trace-file"),
    ],
)
def test_a_wrong_file_names_what_is_wrong(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        cli.parse(["--config", str(file)])


def test_neutral_values_of_refused_flags_are_accepted(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("model-path: a\ndp-size: 1\nenable-trace: false\ndisable-cuda-graph: true\nquantization: none\n")
    assert (
        cli.parse(["--config", str(file), "--radix-eviction-policy", "lru", "--disable-cuda-graph"]).model_path == "a"
    )


def test_sglangs_disaggregation_names_are_aliases() -> None:
    line = "--model m --disaggregation-mode prefill --disaggregation-bootstrap-port 9000"
    config = cli.parse([*line.split(), "--disaggregation-transfer-backend", "tcp"])
    assert (config.disagg_mode, config.disagg_bootstrap_port, config.disagg_provider) == ("prefill", 9000, "tcp")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "--model-path: required"),
        ("--model-path m --modle x", "--modle: no such flag; did you mean --model"),
        ("--model-path m --zzzzzzzz", "--zzzzzzzz: no such flag"),
        ("--model-path m --port x", "--port: invalid int"),
        ("--model-path m --port 70000", "--port: must be 0..65535"),
        ("--model-path m --page-size 129", "--page-size: must be 1..128"),
        ("--model-path m --dtype int3", "--dtype: invalid choice"),
        ("--model-path m --tp-size 65", "--tp-size: must be 1..64"),
        ("--model-path m --tp-size 4 --ep-size 3", "--ep-size: must divide --tp-size"),
        ("--model-path m --dp-size 0", "--dp-size: must be 1..64"),
        ("--model-path m --enable-dp-attention --tp-size 4 --dp-size 2", "--enable-dp-attention: --dp-size must equal"),
        ("--model-path m --enable-dp-attention", "--enable-dp-attention: --dp-size must equal --tp-size, 2 or more"),
        ("--model-path m --enable-dp-attention --tp 2 --dp 2", "--enable-dp-attention: --ep-size must equal --tp-size"),
        ("--model-path m --disagg-bootstrap-port 65535 --dp-size 2", "--disagg-bootstrap-port: must be 1..65535, with"),
        ("--model-path m --disagg-mode prefill --port 8999 --dp-size 2", "--disagg-bootstrap-port: must differ"),
        ("--model-path m --quantization fp8", "--quantization: invalid choice"),
        (
            "--model-path m --disaggregation-transfer-backend nixl",
            "--disaggregation-transfer-backend nixl: KV moves by",
        ),
        ("--model-path m --disaggregation-ib-device mlx5_0", "--disaggregation-ib-device mlx5_0: network devices"),
        ("--model-path m --disagg-mode decode", "--disagg-prefill: --disagg-mode decode needs"),
        ("--model-path m --disagg-prefill a:1", "--disagg-prefill: only --disagg-mode decode"),
        ("--model-path m --disagg-mode decode --disagg-prefill a", "--disagg-prefill: 'a' is not HOST:PORT"),
        ("--model-path m --disagg-mode prefill --port 8998", "--disagg-bootstrap-port: must differ"),
        ("--model-path m --disagg-mode prefill --disagg-host 10.0.0.1", "--disagg-host: off loopback"),
        ("--model-path m --schedule-policy lpm --disable-radix-cache", "--schedule-policy lpm"),
        ("--model-path m --mem-fraction-static 1.5", "--mem-fraction-static"),
        ("--model-path m --cpu-cores 0-x", "--cpu-cores: '0-x'"),
        ("--config /nonexistent.yaml", "--config: cannot read"),
    ],
)
def test_wrong_combinations_name_the_flag_in_one_line(line: str, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        cli.parse(line.split())
    assert str(refusal.value).startswith(message)
    assert "\n" not in str(refusal.value)


def test_cores_outside_the_machine_are_named() -> None:
    with pytest.raises(ConfigError, match="--cpu-cores: this process may not use core 2, 3"):
        resolve({"model_path": "m", "cpu_cores": "0-3"}, MACHINE)


def test_no_chunks_means_the_whole_step() -> None:
    config = resolve({"model_path": "m", "chunked_prefill_size": -1, "max_prefill_tokens": 4096}, MACHINE)
    assert config.chunked_prefill_size == 4096


def test_to_argv_reads_back_to_the_same_configuration() -> None:
    settings = {
        "model_path": "m",
        "disagg-mode": "decode",
        "disagg_prefill": ["127.0.0.1:8998", "127.0.0.1:8999"],
        "cpu_cores": [0],
        "enable_metrics": False,
        "log_requests": True,
        "mem_fraction_static": 0.25,
    }
    expected = resolve(cli.from_mapping(settings, where="test"), cli.hardware.detect())
    assert cli.parse(cli.to_argv(settings)) == expected


def test_the_configuration_crosses_to_the_child_unchanged() -> None:
    config = cli.parse(["--model-path", "m", "--cpu-cores", "0"])
    assert msgspec.json.decode(msgspec.json.encode(config), type=ServerConfig) == config
