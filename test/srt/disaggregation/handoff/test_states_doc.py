"""docs/states.md is what the tables say today."""

from pathlib import Path

from sglang.srt.disaggregation.handoff.states_doc import render

PAGE = Path(__file__).resolve().parents[4] / "docs" / "states.md"


def test_the_page_is_current() -> None:
    wanted = render()
    assert PAGE.read_text() == wanted, "run: python -m sglang.srt.disaggregation.handoff.states_doc > docs/states.md"
    assert "| asked | accepted | **ready**" not in wanted and "| asked | accepted | ready |" in wanted
