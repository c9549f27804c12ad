"""Output tokens -> text, as they arrive."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sglang.srt.managers.stop_patterns import StopPatterns
from sglang.srt.managers.stop_strings import StopStrings

Decode = Callable[[Sequence[int]], str]
"""Token ids -> text; total over any ids the model may produce."""

REPLACEMENT = "\ufffd"
CONTEXT_TOKENS = 6
"""Prompt tokens that the first output token is decoded with: decoders drop the space that begins a text."""
MAX_PENDING = 8
"""Tokens without certain text after which invalid bytes are passed on; a character has at most 4 bytes."""
UNFINISHED = 3
"""Trailing bytes, hence tokens, that one more token could still complete to a character."""


class IncrementalDecoder:
    """Emits text whose concatenation equals decoding all tokens at once, in constant time a token.

    Tokens may end inside a character; decoders show that as U+FFFD, so text that ends in one waits for the next token.
    The window that is decoded again holds the tokens emitted last, as context, and those that wait.
    """

    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        """`context`: the last tokens of the prompt; their text is not emitted."""
        self._decode = decode
        self._window = list(context)
        self._emitted = len(self._window)
        # A prompt of raw ids may end inside a character, which the first output token then completes.
        self._emitted_text = decode(self._window).rstrip(REPLACEMENT) if self._window else ""

    def push(self, token_id: int) -> str:
        """Adds a token; returns the text that is now certain, often empty."""
        window = self._window
        window.append(token_id)
        text = self._decode(window)
        pending = len(window) - self._emitted
        if text.endswith(REPLACEMENT):
            return self._give_up_on_invalid(text) if pending >= MAX_PENDING else ""
        if len(text) <= len(self._emitted_text):
            if pending >= MAX_PENDING:  # tokens without text, such as a run of skipped special tokens
                del window[self._emitted :]
            return ""
        return self._advance(len(window), text)

    def finish(self) -> str:
        """No token follows: whatever waits is emitted, U+FFFD included where the text really ends badly."""
        if len(self._window) == self._emitted:
            return ""
        return self._advance(len(self._window), self._decode(self._window))

    def _advance(self, end: int, text: str) -> str:
        """Emits the tokens before `end`, of which (with the context) `text` is the decoding."""
        delta = text[len(self._emitted_text) :]
        del self._window[: self._emitted]
        self._emitted = end - self._emitted
        self._emitted_text = self._decode(self._window[: self._emitted])
        return delta

    def _give_up_on_invalid(self, text: str) -> str:
        """Emits up to a boundary of characters that no later token can move, if there is one."""
        window = self._window
        for end in range(len(window) - UNFINISHED, self._emitted, -1):
            head = self._decode(window[:end])
            if head + self._decode(window[end:]) == text:
                return self._advance(end, head)
        return ""


@dataclass(frozen=True, slots=True)
class TextRules:
    """How a client wants its text."""

    stop: tuple[str, ...] = ()
    no_stop_trim: bool = False
    """Keep the stop string or stop token at the end of the text."""
    skip_special_tokens: bool = True
    stop_regex: tuple[str, ...] = ()
    min_new_tokens: int = 0
    """Stop strings do not count before so many tokens."""


class Detokenizer:
    """The text of one output: incremental decoding, then stop strings."""

    def __init__(self, decode: Decode, prompt_ids: Sequence[int], rules: TextRules) -> None:
        self._decoder = IncrementalDecoder(decode, prompt_ids[-CONTEXT_TOKENS:])
        self._stops = StopStrings(rules.stop, keep_match=rules.no_stop_trim)
        self._patterns = StopPatterns(rules.stop_regex)
        self._unstoppable = rules.min_new_tokens - 1 if rules.stop or rules.stop_regex else 0

    @property
    def matched(self) -> str | None:
        """The stop string or pattern that ended the text; tokens pushed after it give no text."""
        return self._stops.matched or self._patterns.matched

    def push(self, token_id: int) -> str:
        """Adds a token; returns the text that is now certain."""
        text = self._decoder.push(token_id)
        if self._unstoppable > 0:
            self._unstoppable -= 1
            return text
        return self._push(text)

    def _push(self, text: str) -> str:
        shown = self._stops.push(self._patterns.push(text))
        return shown + self._stops.finish() if self._patterns.matched is not None else shown

    def finish(self) -> str:
        """No token follows. Returns what was held back; a stop string may be found in it."""
        return self._push(self._decoder.finish()) + self._stops.finish()
