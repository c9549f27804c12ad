"""OpenAI's own client, unmodified."""

import math
from collections.abc import Iterator

import openai
import pytest

from support.engines import Engine

ASK = [{"role": "user", "content": "Name three colours of the rainbow."}]


@pytest.fixture
def client(engine: Engine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=engine.url + "/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smol"]
    assert client.models.retrieve("smol").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")


def test_a_chat_and_its_stream_are_the_same(client: openai.OpenAI) -> None:
    asked = {"model": "smol", "messages": ASK, "temperature": 0, "max_completion_tokens": 12}
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.role == "assistant" and whole.usage.completion_tokens == 12
    text, usage, reasons = "", None, []
    with client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}) as stream:
        for event in stream:
            usage = event.usage or usage
            for choice in event.choices:
                text += choice.delta.content or ""
                reasons += [choice.finish_reason] if choice.finish_reason else []
    assert text == whole.choices[0].message.content
    assert usage.prompt_tokens == whole.usage.prompt_tokens and usage.completion_tokens == 12
    assert reasons == ["length"]


def test_chat_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smol", messages=ASK, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    content = answer.choices[0].logprobs.content
    assert "".join(item.token for item in content) == answer.choices[0].message.content
    for item in content:
        assert len(item.top_logprobs) == 3 and item.logprob == item.top_logprobs[0].logprob
        assert math.isfinite(item.logprob) and bytes(item.bytes).decode() == item.token


def test_completions_of_a_batch_with_choices(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="smol", prompt=["One two three", "A B C"], n=2, max_tokens=3, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.completion_tokens == 12


def test_a_stream_of_choices_ends_each_once(client: openai.OpenAI) -> None:
    """Reported case A4; and A6: no usage chunk unless it is asked for."""
    ends: dict[int, int] = {}
    with client.completions.create(
        model="smol", prompt="The sea is", n=2, max_tokens=4, stream=True, stream_options={}
    ) as stream:
        for event in stream:
            assert event.usage is None
            for choice in event.choices:
                ends[choice.index] = ends.get(choice.index, 0) + (choice.finish_reason is not None)
    assert ends == {0: 1, 1: 1}


def test_errors_are_the_client_s_own_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", messages=ASK)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="smol", messages=ASK, temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="smol", prompt=[5] * 20000)
    assert long.value.code == "context_length_exceeded"


def test_the_async_client_asks_many_at_once(engine: Engine) -> None:
    import asyncio

    async def ask() -> list[int]:
        async with openai.AsyncOpenAI(base_url=engine.url + "/v1", api_key="none", max_retries=0) as client:
            jobs = [client.completions.create(model="smol", prompt=f"Number {i} is", max_tokens=3) for i in range(12)]
            return [answer.usage.completion_tokens for answer in await asyncio.gather(*jobs)]

    assert asyncio.run(ask()) == [3] * 12
