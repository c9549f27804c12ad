"""OpenAI's responses and embeddings, and Anthropic's messages, through their own clients."""

import math
from collections.abc import Iterator

import anthropic
import httpx
import openai
import pytest

from support.engines import Engine


@pytest.fixture
def client(engine: Engine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=engine.url + "/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture
def claude(engine: Engine) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=engine.url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def test_a_response_and_its_stream_are_the_same(client: openai.OpenAI) -> None:
    asked = {"model": "smol", "input": "Name a fruit.", "instructions": "Be brief.", "temperature": 0}
    whole = client.responses.create(**asked, max_output_tokens=8)
    assert whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage.output_tokens == 8 and whole.usage.total_tokens == whole.usage.input_tokens + 8
    events = list(client.responses.create(**asked, max_output_tokens=8, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.incomplete"
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == whole.output_text == events[-1].response.output_text


def test_a_response_to_a_list_of_messages(client: openai.OpenAI) -> None:
    said = [
        {"role": "user", "content": [{"type": "input_text", "text": "Say one."}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "One."}]},
        {"role": "user", "content": "Again."},
    ]
    assert client.responses.create(model="smol", input=said, max_output_tokens=4).output_text
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="smol", input="x", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"


def test_a_message_and_its_stream_are_the_same(claude: anthropic.Anthropic) -> None:
    asked = {"model": "smol", "max_tokens": 8, "extra_body": {"temperature": 0}, "system": "Be brief."}
    said = [{"role": "user", "content": [{"type": "text", "text": "Name a fruit."}]}]
    whole = claude.messages.create(**asked, messages=said)
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 8
    with claude.messages.stream(**asked, messages=said) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == whole.content[0].text == last.content[0].text
    assert last.stop_reason == "max_tokens" and last.usage.output_tokens == 8
    counted = claude.messages.count_tokens(model="smol", system="Be brief.", messages=said).input_tokens
    assert counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


def test_a_message_ends_at_a_stop_sequence(claude: anthropic.Anthropic) -> None:
    said = [{"role": "user", "content": "Name a fruit."}]
    asked = {"model": "smol", "max_tokens": 8, "extra_body": {"temperature": 0}, "messages": said}
    word = claude.messages.create(**asked).content[0].text[3:6]
    cut = claude.messages.create(**asked, stop_sequences=[word])
    assert cut.stop_reason == "stop_sequence" and cut.stop_sequence == word and word not in cut.content[0].text


def test_wrong_messages_raise_the_client_s_own_errors(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as wrong:
        claude.messages.create(model="smol", max_tokens=8, messages=[{"role": "user", "content": [{"type": "image"}]}])
    assert wrong.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="gpt-4", max_tokens=8, messages=[{"role": "user", "content": "x"}])


@pytest.fixture(scope="module")
def embedder() -> Iterator[Engine]:
    flags = ("--is-embedding", "--served-model-name", "smol", "--max-total-tokens", "4096", "--dtype", "float32")
    with Engine(*flags, "--chunked-prefill-size", "64") as engine:
        yield engine.wait_ready()


def test_embeddings(embedder: Engine) -> None:
    with openai.OpenAI(base_url=embedder.url + "/v1", api_key="none", max_retries=0) as client:
        texts = ["A cat sleeps.", "A cat is sleeping.", "Interest rates rose by two points.", "word " * 150]
        answer = client.embeddings.create(model="smol", input=texts)
        vectors = [item.embedding for item in answer.data]
        plain = client.embeddings.create(model="smol", input=texts[0], encoding_format="float").data[0].embedding
        assert all(abs(math.hypot(*vector) - 1) < 1e-3 for vector in vectors)
        assert max(abs(a - b) for a, b in zip(plain, vectors[0], strict=True)) < 1e-4
        close = _dot(vectors[0], vectors[1])
        assert close > _dot(vectors[0], vectors[2])
        short = client.embeddings.create(model="smol", input=texts[0], dimensions=32).data[0].embedding
        assert len(short) == 32 and abs(math.hypot(*short) - 1) < 1e-3
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="smol", prompt="x")
    native = httpx.post(embedder.url + "/encode", json={"text": texts[:2]}).json()
    assert max(abs(a - b) for a, b in zip(native[0]["embedding"], vectors[0], strict=True)) < 1e-3


def _dot(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def test_an_engine_that_generates_refuses_embeddings(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model="smol", input="x")
    assert "--is-embedding" in str(refused.value)
