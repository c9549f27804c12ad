"""bench_one_batch and bench_offline_throughput on a tiny model: what they print is about what was asked for."""

import re
from pathlib import Path

import pytest

from sglang import bench_offline_throughput, bench_one_batch
from support.tiny_folder import make_tiny_folder


def figures(said: str) -> dict[str, float]:
    """`Name: number` lines."""
    return {m[1]: float(m[2].replace(",", "")) for m in re.finditer(r"^(.+?):\s+([\d.,]+)$", said, re.MULTILINE)}


def test_one_batch_times_every_combination(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(make_tiny_folder(tmp_path))
    flags = ["--batch-size", "1", "3", "--input-len", "8", "33", "--output-len", "2", "--threads", "1"]
    assert bench_one_batch.main(["--model-path", folder, "--load-format", "dummy", *flags]) == 0
    said = capsys.readouterr().out
    found = re.findall(r"batch size (\d+), input (\d+), output (\d+)", said)
    assert found == [("1", "8", "2"), ("1", "33", "2"), ("3", "8", "2"), ("3", "33", "2")]
    assert said.count("Prefill. latency") == said.count("Decode.  median latency") == 4
    latency, rate = map(float, re.findall(r"Prefill\. latency:\s+([\d.]+) s, throughput:\s+([\d.]+)", said)[-1])
    assert rate == pytest.approx(3 * 33 / latency, rel=0.05)
    assert bench_one_batch.main(["--model-path", str(tmp_path / "nothing")]) == 1
    assert "nothing" in capsys.readouterr().err


@pytest.mark.parametrize("disagg", [(), ("--disagg",)], ids=["unified", "disaggregated"])
def test_offline_throughput_counts_what_it_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], disagg: tuple[str, ...]
) -> None:
    folder = str(make_tiny_folder(tmp_path))
    flags = [
        "--num-prompts",
        "3",
        "--random-input-len",
        "20",
        "--random-output-len",
        "4",
        "--dataset-name",
        "random-ids",
    ]
    flags += ["--load-format", "dummy", "--max-total-tokens", "2048", "--threads", "1", *disagg]
    assert bench_offline_throughput.main(["--model-path", folder, *flags]) == 0
    found = figures(capsys.readouterr().out)
    assert found["Successful requests"] == 3
    assert (found["Total input tokens"], found["Total generated tokens"]) == (60, 12)
    read, written = (found[f"{name} token throughput (tok/s)"] for name in ("Input", "Output"))
    assert read == pytest.approx(5 * written, rel=0.01) and written > 0
    assert bench_offline_throughput.main(["--model-path", folder, "--no-such-flag"]) == 2
    assert "no-such-flag" in capsys.readouterr().err
