"""Generation alone: what happens when several messages wait to be taken at once."""

import asyncio
from collections.abc import Sequence

import pytest

from sglang.srt.core.sampling import SamplingParams
from sglang.srt.entrypoints.generation import Chunk, Generation, Wanted
from sglang.srt.managers.detokenizer import TextRules
from sglang.srt.managers.tokenizer import Tokenizer
from sglang.srt.messages.frontend import Generate, TokenOut
from sglang.srt.observability.metrics import Metrics


class FakeClient:
    """Gives one list of messages, once."""

    def __init__(self, events: list[tuple[int, TokenOut]]) -> None:
        self.events = events
        self.dropped: list[int] = []

    def submit(self, requests: Sequence[Generate]) -> "FakeClient":
        return self

    async def take(self) -> list[tuple[int, TokenOut]]:
        events, self.events = self.events, []
        assert events, "taken after the end"
        return events

    def drop(self, output: int) -> None:
        self.dropped.append(output)

    def close(self, error: object = None) -> None:
        pass


def outputs(tokenizer: Tokenizer, events: list[TokenOut], stop: str) -> tuple[list[Chunk], FakeClient]:
    client = FakeClient([(0, event) for event in events])
    wanted = Wanted((5,), SamplingParams(), TextRules(stop=(stop,)))
    generation = Generation(client, tokenizer, Metrics("m", "i"), [wanted], "r")  # type: ignore[arg-type]
    return asyncio.run(generation.collect()), client


def test_messages_behind_a_stop_string_are_ignored(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one STOP two three")
    events = [TokenOut(rid="r", token_ids=(token,)) for token in ids]
    events.append(TokenOut(rid="r", token_ids=(), finish_reason="abort"))
    chunks, client = outputs(tokenizer, events, " STOP")
    assert chunks[0].text == "one" and chunks[0].finish is not None
    assert (chunks[0].finish.reason, chunks[0].finish.matched) == ("stop", " STOP")
    assert chunks[0].token_ids == ids[: len(chunks[0].token_ids)] != ids
    assert client.dropped == [0]


@pytest.mark.parametrize("reason", ["length", "abort", "stop"])
def test_held_back_text_comes_with_the_end(tokenizer: Tokenizer, reason: str) -> None:
    ids = tokenizer.encode("one ST")
    chunks, client = outputs(tokenizer, [TokenOut(rid="r", token_ids=tuple(ids), finish_reason=reason)], " STOP")
    assert chunks[0].text == "one ST" and chunks[0].finish is not None and chunks[0].finish.reason == reason
    assert client.dropped == []


def test_a_stop_string_inside_several_tokens_of_one_step(tokenizer: Tokenizer) -> None:
    """Reported case A16, for a stop that is text: it is whole with the third of six tokens."""
    ids = tokenizer.encode("alpha beta STOP gamma delta")
    third = len(tokenizer.encode("alpha beta STOP"))
    events = [TokenOut(rid="r", token_ids=tuple(ids), finish_reason="length")]
    (chunk,), client = outputs(tokenizer, events, " STOP")
    assert chunk.finish is not None and (chunk.finish.reason, chunk.finish.matched) == ("stop", " STOP")
    assert chunk.text == "alpha beta" and chunk.token_ids == ids[:third]
    assert client.dropped == []
