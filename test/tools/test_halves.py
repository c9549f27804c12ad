"""Every folder of tests is in one half, and no red test is lost between them."""

from pathlib import Path

import pytest

from support import halves


def test_each_file_of_tests_is_in_one_half() -> None:
    first, second = halves.halves()
    for path in Path(halves.TEST).rglob("test_*.py"):
        homes = [folder for folder in (*first, *second) if path.is_relative_to(folder)]
        assert len(homes) == 1, path


@pytest.fixture(autouse=True)
def bare_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugins of this environment take seconds to load."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_summaries_are_added_up() -> None:
    first = "...\n==== 3 failed, 12 passed, 1 skipped, 7 deselected in 3.21s ====\n"
    second = "== 5 passed, 1 error in 1.00s (0:00:01) ==\n"
    assert halves.tally([first, second]) == {"passed": 17, "failed": 4, "skipped": 1, "deselected": 7}
    with pytest.raises(ValueError, match="without a summary"):
        halves.tally([first, "Killed\n"])


def test_flags_may_leave_one_half_without_tests_but_not_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("waits", "computes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"test_{name}.py").write_text(f"def test_{name}(): pass\n")
    monkeypatch.setattr(halves, "halves", lambda: ([str(tmp_path / "waits")], [str(tmp_path / "computes")]))
    assert halves.main(["-k", "waits"]) == 0
    assert capsys.readouterr().out.endswith("1 passed, 0 failed, 0 skipped\n")
    assert halves.main(["-k", "neither"]) == 1


@pytest.mark.parametrize(("red", "code"), [((), 0), (("waits",), 1), (("computes",), 1)])
def test_a_red_half_is_red(
    red: tuple[str, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("waits", "computes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"test_{name}.py").write_text(f"def test_one(): assert {name not in red}\n")
    monkeypatch.setattr(halves, "halves", lambda: ([str(tmp_path / "waits")], [str(tmp_path / "computes")]))
    assert halves.main([]) == code
    said = capsys.readouterr().out
    assert said.endswith(f"{2 - code} passed, {code} failed, 0 skipped\n")
    assert all(f"test_{name}.py" in said for name in red)
