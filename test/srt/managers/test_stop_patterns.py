"""stop_regex: where the text ends, across pieces, and the bound on time."""

import random
import time

import pytest

from sglang.srt.errors import RequestError
from sglang.srt.managers.detokenizer import Detokenizer, TextRules
from sglang.srt.managers.stop_patterns import MAX_PATTERN, StopPatterns, compiled

TEXT = "Step 1: add.\nStep 2: stir.\nAnswer: 42 grams, then more"


@pytest.mark.parametrize("seed", range(8))
def test_the_end_does_not_depend_on_the_cuts(seed: int) -> None:
    rng = random.Random(seed)
    patterns = StopPatterns([r"Answer: \d+", r"never"])
    shown, left = "", TEXT
    while left and patterns.matched is None:
        size = rng.randint(1, 1 if seed == 0 else 4)
        shown, left = shown + patterns.push(left[:size]), left[size:]
    # A pattern is met as soon as its first digit is there, unless both digits came in one piece.
    assert shown in (TEXT[: TEXT.index("2 grams")], TEXT[: TEXT.index(" grams")])
    assert patterns.matched == r"Answer: \d+"


def test_the_first_of_several_ends_it() -> None:
    patterns = StopPatterns(["stir", "add"])
    assert patterns.push(TEXT) == "Step 1: add" and patterns.matched == "add"


def test_a_match_releases_what_a_stop_string_held_back() -> None:
    tokens = ["abc", "XY", "9"]
    rules = TextRules(stop=("XYZ",), stop_regex=(r"Y",))
    text = Detokenizer(lambda ids: "".join(tokens[i] for i in ids), [], rules)
    assert text.push(0) + text.push(1) == "abcXY" and text.matched == "Y"


def test_a_search_that_takes_too_long_ends_its_request_only() -> None:
    patterns = StopPatterns([r"^(?:a|a|aa)+$"])
    began = time.monotonic()
    with pytest.raises(RequestError, match="took longer"):
        patterns.push("a" * 60 + "!")
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("wrong", ["(", "[a", "a{2,1}", "*", "x" * (MAX_PATTERN + 1)])
def test_what_is_no_pattern_is_refused(wrong: str) -> None:
    with pytest.raises(RequestError) as refused:
        compiled(wrong)
    assert refused.value.param == "stop_regex" and refused.value.status == 400
