"""What a scheduler process is told by its environment."""

import pytest

from sglang.srt.config.hardware import child_environment


def test_helpers_of_openmp_sleep_unless_the_user_wants_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    child = child_environment(2)
    assert child["OMP_NUM_THREADS"] == "2"
    assert child["OMP_WAIT_POLICY"] == "passive"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert child_environment(2)["OMP_WAIT_POLICY"] == "active"


def test_memory_of_a_prompt_is_kept_unless_the_user_wants_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
        assert child_environment(2)[name] == str(256 << 20)
        monkeypatch.setenv(name, "1000")
        assert child_environment(2)[name] == "1000"
