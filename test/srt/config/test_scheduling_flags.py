"""The flags that steer scheduling reach the scheduler's limits."""

from pathlib import Path

from sglang.srt.config.cli import parse
from sglang.srt.config.model import read_model_spec
from sglang.srt.entrypoints.scheduler_process import limits_of
from support.tiny_folder import make_tiny_folder


def test_scheduling_flags_reach_the_limits(tmp_path: Path) -> None:
    folder = make_tiny_folder(tmp_path)
    spec = read_model_spec(folder)
    plain = limits_of(parse(["--model-path", str(folder)]), spec)
    assert (plain.mixed, plain.conservativeness, plain.policy, plain.depth) == (False, 1.0, "fcfs", 2)
    flags = ["--enable-mixed-chunk", "--schedule-conservativeness", "0.3", "--schedule-policy", "lpm"]
    flags += ["--disable-overlap-schedule", "--chunked-prefill-size", "64", "--max-queued-requests", "7"]
    given = limits_of(parse(["--model-path", str(folder), *flags]), spec)
    assert (given.mixed, given.conservativeness, given.policy, given.depth) == (True, 0.3, "lpm", 1)
    assert (given.chunk, given.max_queued) == (64, 7)
