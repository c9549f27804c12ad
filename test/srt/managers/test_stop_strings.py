"""Stop strings: the result must not depend on how the text was cut into pieces."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang.srt.managers.stop_strings import StopStrings


def run(pieces: list[str], stops: list[str], *, keep: bool = False) -> tuple[str, str | None]:
    matcher = StopStrings(stops, keep_match=keep)
    text = "".join(matcher.push(piece) for piece in pieces)
    return text + matcher.finish(), matcher.matched


def test_a2_nothing_of_a_stop_string_is_emitted_when_it_comes_piecewise() -> None:
    matcher = StopStrings(["DEFGHIJ"])
    emitted = [matcher.push(piece) for piece in ("AB", "CD", "E", "FGH", "IJK")]
    assert emitted == ["AB", "C", "", "", ""]
    assert matcher.matched == "DEFGHIJ"
    assert matcher.push("more") == matcher.finish() == ""


def test_a2_held_text_is_released_when_it_cannot_become_the_stop() -> None:
    matcher = StopStrings(["DEFGHIJ"])
    assert [matcher.push(piece) for piece in ("ABCDE", "FG", "X")] == ["ABC", "", "DEFGX"]


def test_held_text_is_released_at_the_end() -> None:
    assert run(["ABCDE"], ["DEFGHIJ"]) == ("ABCDE", None)


def test_the_stop_that_is_complete_first_wins() -> None:
    assert run(["abcdef"], ["bcdef", "cd"]) == ("ab", "cd")
    assert run(["abcd"], ["cd", "bcd"]) == ("a", "bcd")


def test_no_stop_trim_keeps_the_stop_and_nothing_after() -> None:
    assert run(["ab", "cd"], ["bc"], keep=True) == ("abc", "bc")


def test_text_passes_at_once_without_stops() -> None:
    assert StopStrings([""]).push("x") == "x"


words = st.text(alphabet="ab", min_size=1, max_size=5)


@given(text=st.text(alphabet="ab", max_size=30), stops=st.lists(words, min_size=1, max_size=3), data=st.data())
def test_pieces_do_not_matter_and_the_result_is_the_specification(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    bounds = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(bounds)]
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    expected = (text, None) if not ends else (text[: min(ends)[0] + min(ends)[1]], min(ends)[2])
    assert run(pieces, stops) == run(list(text), stops) == expected


@pytest.mark.timeout(5)
def test_many_long_stops_stay_cheap() -> None:
    matcher = StopStrings([("a" * 1000) + str(i) for i in range(16)])
    assert sum(len(matcher.push("a")) for _ in range(3000)) == 3000 - 1000
