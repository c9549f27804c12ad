"""/v1/chat/completions with the openai client."""

from collections.abc import Callable

import openai
import pytest

from sglang.srt.messages.frontend import Generate
from support.live_front import LiveFront, wait_until

USER = [{"role": "user", "content": "hi"}]
Say = Callable[..., list[int]]


def test_an_answer_with_usage(client: openai.OpenAI, live: LiveFront, say: Say) -> None:
    tokens = say("Hello there 世界 🌍", end=True)
    live.scheduler.cached_tokens = 5
    answer = client.chat.completions.create(model="smol", messages=USER, max_tokens=50)
    assert answer.choices[0].message.content == "Hello there 世界 🌍"
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage is not None and usage.prompt_tokens_details is not None
    assert usage.completion_tokens == len(tokens)
    assert usage.prompt_tokens == len(live.scheduler.generated()[-1].token_ids)
    assert usage.prompt_tokens_details.cached_tokens == 5
    prompt = live.tokenizer.decode(live.scheduler.generated()[-1].token_ids, skip_special_tokens=False)
    assert prompt.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


def test_a_stream_joins_to_the_same_text(client: openai.OpenAI, say: Say) -> None:
    say("Hello there 世界 🌍", end=True)
    chunks = list(client.chat.completions.create(model="smol", messages=USER, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == "Hello there 世界 🌍"
    assert "\ufffd" not in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]


def test_a4_a_stream_with_n_2_has_one_finish_reason_an_index(client: openai.OpenAI, say: Say) -> None:
    say("one two three", "four five six")
    # The last token of each brings text and the end at once.
    chunks = client.chat.completions.create(model="smol", messages=USER, stream=True, n=2, max_tokens=2)
    ends: list[int] = []
    texts = {0: "", 1: ""}
    roles: list[int] = []
    for chunk in chunks:
        choice = chunk.choices[0]
        assert choice.index not in ends, "text after the finish reason"
        texts[choice.index] += choice.delta.content or ""
        roles += [choice.index] if choice.delta.role else []
        ends += [choice.index] if choice.finish_reason else []
    assert sorted(ends) == sorted(roles) == [0, 1]
    assert texts == {0: "one two", 1: "four five"}


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_a6_no_usage_chunk_unless_asked_for(client: openai.OpenAI, options: dict[str, bool] | None) -> None:
    extra = {} if options is None else {"stream_options": options}
    chunks = list(client.chat.completions.create(model="smol", messages=USER, stream=True, max_tokens=3, **extra))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_include_usage_sends_one_last_chunk_without_choices(client: openai.OpenAI) -> None:
    options = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(model="smol", messages=USER, stream=True, max_tokens=3, stream_options=options)
    )
    assert [bool(chunk.usage) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 3


def test_continuous_usage_counts_up(client: openai.OpenAI, live: LiveFront) -> None:
    live.scheduler.step_s = 0.005
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        client.chat.completions.create(model="smol", messages=USER, stream=True, max_tokens=5, stream_options=options)
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    assert counts == sorted(counts) and counts[-1] == 5 and len(counts) == len(chunks)


@pytest.mark.parametrize("stream", [False, True])
def test_a2_a_stop_string_across_tokens_ends_the_request(
    client: openai.OpenAI, live: LiveFront, say: Say, stream: bool
) -> None:
    say("ABCDEFGHIJKLM and much more text that nobody wants to see")
    live.scheduler.step_s = 0.002
    call = client.chat.completions.create(model="smol", messages=USER, stop=["DEFGHIJ"], max_tokens=500, stream=stream)
    if stream:
        chunks = list(call)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        text, reason = call.choices[0].message.content, call.choices[0].finish_reason
    assert (text, reason) == ("ABC", "stop")
    wait_until(lambda: live.scheduler.aborted() == [live.scheduler.generated()[-1].rid])


def test_a16_tokens_behind_a_stop_string_in_the_same_step_do_not_count(
    client: openai.OpenAI, live: LiveFront, say: Say
) -> None:
    say("one two STOP three four five")
    live.scheduler.tokens_a_step = 100
    answer = client.chat.completions.create(model="smol", messages=USER, stop=" STOP", max_tokens=100, logprobs=True)
    assert answer.choices[0].message.content == "one two"
    count = answer.usage.completion_tokens
    assert count == len(answer.choices[0].logprobs.content) <= 4


def test_a3_the_text_before_a_stop_token_is_kept(client: openai.OpenAI, live: LiveFront, say: Say) -> None:
    tokens = say("The end! Go on")
    stop = live.tokenizer.encode("!")[0]
    assert stop in tokens
    for keep, expected in ((False, "The end"), (True, "The end!")):
        answer = client.chat.completions.create(
            model="smol",
            messages=USER,
            stop=["endless"],
            max_tokens=50,
            extra_body={"stop_token_ids": [stop], "no_stop_trim": keep},
        )
        assert answer.choices[0].message.content == expected
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].model_extra["matched_stop"] == stop


def test_logprobs_with_bytes(client: openai.OpenAI, say: Say) -> None:
    tokens = say("Hi 🌍", end=True)
    options = {"model": "smol", "messages": USER, "logprobs": True, "top_logprobs": 2}
    content = client.chat.completions.create(**options).choices[0].logprobs.content
    assert len(content) == len(tokens) and len(content[0].top_logprobs) == 2
    assert b"".join(bytes(item.bytes) for item in content[:-1]).decode() == "Hi 🌍"
    streamed = [
        item
        for chunk in client.chat.completions.create(**options, stream=True)
        if chunk.choices[0].logprobs
        for item in chunk.choices[0].logprobs.content
    ]
    assert streamed == content


def test_parameters_reach_the_scheduler_with_the_models_end_token(client: openai.OpenAI, live: LiveFront) -> None:
    client.chat.completions.create(
        model="smol",
        messages=[{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        temperature=0.5,
        top_p=0.9,
        seed=7,
        max_completion_tokens=3,
        presence_penalty=1,
        logit_bias={"5": -100},
        n=2,
        extra_body={"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 1, "unknown": 1},
    )
    first, second = live.scheduler.generated()[-2:]
    sampling = first.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 5, 0.1)
    assert (sampling.max_new_tokens, sampling.min_new_tokens, sampling.stop_token_ids) == (3, 1, (2,))
    assert sampling.logit_bias == ((5, -100.0),)
    assert first.group == second.group != ""
    assert first.sampling.seed == 7 != second.sampling.seed  # A11: distinct, and derived from the seed
    assert "system\na\nb" in live.tokenizer.decode(first.token_ids)


def test_without_a_limit_the_answer_may_fill_the_context(client: openai.OpenAI, live: LiveFront) -> None:
    live.scheduler.answer = lambda request: [2]
    client.chat.completions.create(model="smol", messages=USER)
    request: Generate = live.scheduler.generated()[-1]
    assert request.sampling.max_new_tokens == 2048 - len(request.token_ids)


def test_the_final_message_can_be_continued(client: openai.OpenAI, live: LiveFront) -> None:
    messages = [*USER, {"role": "assistant", "content": "Well,"}]
    client.chat.completions.create(
        model="smol", messages=messages, max_tokens=1, extra_body={"continue_final_message": True}
    )
    assert live.tokenizer.decode(live.scheduler.generated()[-1].token_ids).endswith("Well,")
