"""Incremental detokenization equals decoding everything at once, never shows half characters, and stays cheap."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from sglang.srt.managers.detokenizer import Detokenizer, IncrementalDecoder, TextRules
from support.small_tokenizer import byte_fallback, byte_level

TOKENIZERS = {"byte_level": byte_level(), "byte_fallback": byte_fallback()}


def decode_with(tokenizer: Tokenizer, *, skip: bool = True) -> "CountingDecode":
    return CountingDecode(tokenizer, skip)


class CountingDecode:
    def __init__(self, tokenizer: Tokenizer, skip: bool) -> None:
        self.tokenizer, self.skip, self.tokens = tokenizer, skip, 0

    def __call__(self, ids: Sequence[int]) -> str:
        self.tokens += len(ids)
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=self.skip))


def test_a_character_that_grows_over_tokens_is_never_shown_half() -> None:
    """Reported case A1."""
    partial = {0: "", 1: "A 世\ufffd", 2: "A 世a\ufffd", 3: "A 世ab"}
    decoder = IncrementalDecoder(lambda ids: partial[len(ids)])
    deltas = [decoder.push(token) for token in (7, 8, 9)]
    assert "".join(deltas) + decoder.finish() == "A 世ab"
    assert not any("\ufffd" in delta for delta in deltas)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text(max_size=40))
def test_deltas_join_to_the_text_and_show_no_half_characters(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    decode = decode_with(tokenizer)
    whole = decode(ids)
    decoder = IncrementalDecoder(decode)
    deltas = [decoder.push(token) for token in ids]
    assert "".join(deltas) + decoder.finish() == whole
    assert "".join(deltas).count("\ufffd") <= whole.count("\ufffd")


@settings(max_examples=300)
@given(data=st.data())
def test_any_tokens_even_invalid_bytes_join_to_the_whole_text(data: st.DataObject) -> None:
    # Not for byte_fallback: it replaces a whole run of bytes once one of them is wrong, which cannot be taken back.
    tokenizer = TOKENIZERS["byte_level"]
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=60))
    decode = decode_with(tokenizer)
    decoder = IncrementalDecoder(decode)
    text = "".join(decoder.push(token) for token in ids) + decoder.finish()
    assert text == decode(ids)


def test_the_space_after_the_prompt_is_kept() -> None:
    tokenizer = TOKENIZERS["byte_fallback"]
    the, a = tokenizer.token_to_id("▁the"), tokenizer.token_to_id("▁a")
    decoder = IncrementalDecoder(decode_with(tokenizer), context=[the])
    assert decoder.push(a) + decoder.push(the) == " a the"


def test_a_prompt_that_ends_inside_a_character_lets_the_output_complete_it() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("世").ids
    assert len(ids) == 3
    decoder = IncrementalDecoder(decode_with(tokenizer), context=ids[:1])
    assert decoder.push(ids[1]) + decoder.push(ids[2]) == "世"


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("kind", ["text", "invalid", "special"])
def test_the_cost_of_a_token_does_not_grow(name: str, kind: str) -> None:
    tokenizer = TOKENIZERS[name]
    lead = tokenizer.token_to_id("<0xE4>") if name == "byte_fallback" else tokenizer.encode("世").ids[0]
    text = tokenizer.encode("a", add_special_tokens=False).ids[0]
    token = {"text": text, "invalid": lead, "special": 0}[kind]
    decode = decode_with(tokenizer)
    decoder = IncrementalDecoder(decode)
    out = "".join(decoder.push(token) for _ in range(2000)) + decoder.finish()
    assert decode.tokens < 2000 * 60
    assert len(out) == {"text": 2000, "invalid": 2000, "special": 0}[kind] or kind == "special"


def test_skipped_special_tokens_leave_no_trace_and_can_be_kept() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("hello world").ids
    with_special = [ids[0], 1, *ids[1:], 0]
    shown = Detokenizer(decode_with(tokenizer), (), TextRules())
    assert "".join(map(shown.push, with_special)) + shown.finish() == "hello world"
    kept = Detokenizer(decode_with(tokenizer, skip=False), (), TextRules(skip_special_tokens=False))
    assert "<|start|>" in "".join(map(kept.push, with_special)) + kept.finish()


def test_a2_a_stop_string_across_tokens() -> None:
    """Reported case A2."""
    tokenizer = TOKENIZERS["byte_level"]
    detokenizer = Detokenizer(decode_with(tokenizer), (), TextRules(stop=("DEFGHIJ",)))
    text = ""
    for token in tokenizer.encode("ABCDEFGHIJKLM").ids:
        text += detokenizer.push(token)
        if detokenizer.matched:
            break
    assert (text, detokenizer.matched) == ("ABC", "DEFGHIJ")


def test_a3_the_characters_before_the_end_are_kept() -> None:
    """Reported case A3, with a stop string that did not come: what was held back for it is released."""
    tokenizer = TOKENIZERS["byte_level"]
    detokenizer = Detokenizer(decode_with(tokenizer), (), TextRules(stop=("DEFGHIJ",)))
    text = "".join(map(detokenizer.push, tokenizer.encode("ABCDEF").ids))
    assert (text, detokenizer.finish()) == ("ABC", "DEF")


def test_stop_strings_do_not_count_before_min_new_tokens() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = [tokenizer.token_to_id(letter) for letter in "abab"]
    detokenizer = Detokenizer(decode_with(tokenizer), (), TextRules(stop=("ab",), min_new_tokens=3))
    assert "".join(map(detokenizer.push, ids)) == "ab"
    assert detokenizer.matched == "ab"
