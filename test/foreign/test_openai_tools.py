"""OpenAI's own client, unmodified, with a real model: tools, schemas, log probabilities of completions, responses."""

import json
import math
from collections.abc import Iterator
from typing import Literal

import openai
import pytest
from pydantic import BaseModel, Field

from support.engines import Engine

ASK = [{"role": "user", "content": "Book a table for two on Monday."}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "book_table",
            "description": "Books a table.",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"guests": {"enum": [1, 2, 3]}, "day": {"enum": ["Mon", "Tue"]}},
                "required": ["guests", "day"],
                "additionalProperties": False,
            },
        },
    }
]
CALL = (
    r'"<tool_call>\n{\"name\": \"book_table\", \"arguments\": {\"guests\": " [123] ", \"day\": \"Mon\"}}\n</tool_call>"'
)
TWO_CALLS = f'root ::= {CALL} "\\n" {CALL}'


class Person(BaseModel):
    name: str = Field(max_length=12)
    colour: Literal["red", "blue"]


@pytest.fixture
def client(engine: Engine) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=engine.url + "/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


def test_two_calls_are_streamed_in_parallel(client: openai.OpenAI) -> None:
    """Reported case A5: indices 0 and 1."""
    asked = {
        "model": "smol",
        "messages": ASK,
        "temperature": 0,
        "tools": [{**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": False}}],
    }
    calls: dict[int, list[str]] = {}
    reasons = []
    # 173 characters: enough even at one a token.
    with client.chat.completions.create(**asked, max_tokens=180, stream=True, extra_body={"ebnf": TWO_CALLS}) as stream:
        for event in stream:
            choice = event.choices[0]
            assert not choice.delta.content
            for call in choice.delta.tool_calls or []:
                calls.setdefault(call.index, []).append(call.function.name or call.function.arguments)
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert list(calls) == [0, 1] and reasons == ["tool_calls"]
    for name, *arguments in calls.values():
        assert name == "book_table" and json.loads("".join(arguments))["day"] == "Mon"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "book_table"}}])
def test_forced_calls(client: openai.OpenAI, choice: object) -> None:
    asked = {"model": "smol", "messages": ASK, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    whole = client.chat.completions.create(**asked, max_tokens=120, seed=1).choices[0]
    (call,) = whole.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert arguments["guests"] in (1, 2, 3) and arguments["day"] in ("Mon", "Tue")
    assert whole.finish_reason == ("tool_calls" if choice == "required" else "stop")
    parts = list(client.chat.completions.create(**asked, max_tokens=120, seed=1, stream=True))
    streamed = "".join(
        c.function.arguments for part in parts for c in part.choices[0].delta.tool_calls or [] if c.function.arguments
    )
    assert json.loads(streamed) == arguments and parts[-1].choices[0].finish_reason == whole.finish_reason


def test_a_strict_tool_that_the_model_need_not_call(client: openai.OpenAI) -> None:
    """Text stays free; a call, wherever it begins, has the schema: the bias makes the model begin one at once."""
    free = client.chat.completions.create(model="smol", messages=ASK, tools=TOOLS, max_tokens=8, temperature=0).choices[
        0
    ]
    assert free.message.content
    asked = {"model": "smol", "messages": [{"role": "user", "content": "Say <tool_call>"}], "tools": TOOLS, "n": 4}
    for choice in client.chat.completions.create(**asked, max_tokens=60, temperature=1.0, seed=3).choices:
        for call in choice.message.tool_calls or []:
            if choice.finish_reason == "tool_calls":
                assert json.loads(call.function.arguments)["day"] in ("Mon", "Tue")


def test_response_format_and_parse(client: openai.OpenAI) -> None:
    said = [{"role": "user", "content": "Describe a person."}]
    form = {"type": "json_schema", "json_schema": {"name": "p", "schema": Person.model_json_schema(), "strict": True}}
    asked = {"model": "smol", "messages": said, "max_tokens": 100, "temperature": 0}
    whole = client.chat.completions.create(**asked, response_format=form)
    assert Person.model_validate_json(whole.choices[0].message.content)
    parsed = client.chat.completions.parse(**asked, response_format=Person)
    assert isinstance(parsed.choices[0].message.parsed, Person)
    loose = client.chat.completions.create(
        model="smol", messages=said, response_format={"type": "json_object"}, max_tokens=200, temperature=0
    )
    assert loose.choices[0].finish_reason == "length" or isinstance(json.loads(loose.choices[0].message.content), dict)


def test_responses_parse_and_call(client: openai.OpenAI) -> None:
    greedy = {"model": "smol", "temperature": 0}
    parsed = client.responses.parse(**greedy, input="Describe a person.", text_format=Person, max_output_tokens=100)
    assert isinstance(parsed.output_parsed, Person) and parsed.status == "completed"
    tool = {"type": "function", **TOOLS[0]["function"]}
    asked = {**greedy, "input": "Book a table.", "tools": [tool], "tool_choice": "required"}
    whole = client.responses.create(**asked, parallel_tool_calls=False, max_output_tokens=120)
    (call,) = whole.output
    assert call.type == "function_call" and json.loads(call.arguments)["guests"] in (1, 2, 3)
    said = [{"role": "user", "content": "Book a table."}, call.model_dump(exclude_none=True)]
    said.append({"type": "function_call_output", "call_id": call.call_id, "output": "done"})
    assert client.responses.create(**greedy, input=said, tools=[tool], max_output_tokens=6).output_text


def test_logprobs_of_completions(client: openai.OpenAI) -> None:
    asked = {"model": "smol", "prompt": "One two three", "max_tokens": 4, "temperature": 0, "logprobs": 2}
    whole = client.completions.create(**asked, echo=True).choices[0]
    found = whole.logprobs
    assert "".join(found.tokens) == whole.text and found.token_logprobs[0] is None
    assert all(math.isfinite(value) for value in found.token_logprobs[1:]) and len(found.top_logprobs[-1]) == 2
    offsets = [sum(map(len, found.tokens[:i])) for i in range(len(found.tokens))]
    assert found.text_offset == offsets
    parts = [e.choices[0] for e in client.completions.create(**asked, stream=True) if e.choices]
    streamed = [value for part in parts if part.logprobs for value in part.logprobs.token_logprobs]
    assert streamed == pytest.approx(found.token_logprobs[-4:], abs=1e-4)


def test_streams_of_chat_have_logprobs(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="smol", messages=ASK, max_tokens=4, temperature=0, logprobs=True, top_logprobs=2, stream=True
    )
    items = [item for e in stream for c in e.choices if c.logprobs for item in c.logprobs.content]
    assert len(items) == 4 and all(len(item.top_logprobs) == 2 for item in items)
