"""/v1/completions and /v1/models with the openai client."""

from collections.abc import Callable

import openai
import pytest

from support.live_front import LiveFront

Say = Callable[..., list[int]]


def test_prompts_as_text_ids_and_batches(client: openai.OpenAI, live: LiveFront) -> None:
    ids = live.tokenizer.encode("one two")
    for prompt in ("one two", ids, ["one two"], [ids]):
        answer = client.completions.create(model="smol", prompt=prompt, max_tokens=len(ids))
        assert answer.choices[0].text == "one two"
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage.prompt_tokens == len(ids)


def test_a_batch_with_n_keeps_the_order(client: openai.OpenAI, live: LiveFront) -> None:
    answer = client.completions.create(model="smol", prompt=["a a a a", "b b b b"], n=2, max_tokens=2)
    assert [(choice.index, choice.text) for choice in answer.choices] == [
        (0, "a a"),
        (1, "a a"),
        (2, "b b"),
        (3, "b b"),
    ]
    assert answer.usage.prompt_tokens == 8 and answer.usage.completion_tokens == 8


def test_the_default_is_16_tokens_cut_to_what_fits(client: openai.OpenAI, live: LiveFront) -> None:
    client.completions.create(model="smol", prompt="a")
    assert live.scheduler.generated()[-1].sampling.max_new_tokens == 16
    client.completions.create(model="smol", prompt=[5] * 2040)
    assert live.scheduler.generated()[-1].sampling.max_new_tokens == 8


@pytest.mark.parametrize("stream", [False, True])
def test_echo(client: openai.OpenAI, say: Say, stream: bool) -> None:
    say(" world", end=True)
    answer = client.completions.create(model="smol", prompt="Hello", echo=True, stream=stream, max_tokens=5)
    text = "".join(chunk.choices[0].text for chunk in answer) if stream else answer.choices[0].text
    assert text == "Hello world"


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs_covers_prompt_and_output(client: openai.OpenAI, say: Say, stream: bool) -> None:
    say(" there", end=True)
    answer = client.completions.create(
        model="smol", prompt="Hello world", echo=True, logprobs=1, stream=stream, max_tokens=5
    )
    shown = [chunk.choices[0].logprobs for chunk in answer] if stream else [answer.choices[0].logprobs]
    shown = [item for item in shown if item is not None]
    assert [t for item in shown for t in item.tokens][:3] == ["Hello", " world", " there"]
    assert [t for item in shown for t in item.token_logprobs][:3] == [None, -1.25, -0.5]
    assert [t for item in shown for t in item.text_offset][:3] == [0, 5, 11]
    tops = [t for item in shown for t in item.top_logprobs]
    assert tops[0] is None and all(len(top) == 1 for top in tops[1:3])


def test_no_tokens_are_answered_where_only_the_prompt_is_wanted(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="smol", prompt="Hello world", echo=True, logprobs=1, max_tokens=0)
    choice = answer.choices[0]
    assert choice.text == "Hello world" and choice.finish_reason == "length"
    assert choice.logprobs.token_logprobs == [None, -1.25] and answer.usage.completion_tokens == 0


def test_logprobs(client: openai.OpenAI, say: Say) -> None:
    say("Hello world")
    options = {"model": "smol", "prompt": "x", "max_tokens": 2, "logprobs": 2}
    whole = client.completions.create(**options).choices[0].logprobs
    assert whole.tokens == ["Hello", " world"] and whole.text_offset == [0, 5]
    assert whole.token_logprobs == [-0.5, -0.5] and len(whole.top_logprobs[0]) == 2
    parts = [chunk.choices[0].logprobs for chunk in client.completions.create(**options, stream=True)]
    assert [token for part in parts if part for token in part.tokens] == whole.tokens
    assert [offset for part in parts if part for offset in part.text_offset] == whole.text_offset


def test_an_infinite_logprob_becomes_a_number(client: openai.OpenAI, live: LiveFront) -> None:
    from sglang.srt.entrypoints.native_generate import finite

    assert finite(float("-inf")) == -9999.0


def test_a4_streamed_batches_have_one_finish_reason_an_index(client: openai.OpenAI) -> None:
    chunks = client.completions.create(model="smol", prompt=["a", "b"], n=2, max_tokens=4, stream=True)
    ends = [chunk.choices[0].index for chunk in chunks if chunk.choices[0].finish_reason]
    assert sorted(ends) == [0, 1, 2, 3]


def test_models(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == ["smol"]
    assert models[0].model_extra["max_model_len"] == 2048
    assert client.models.retrieve("smol").id == "smol"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")
