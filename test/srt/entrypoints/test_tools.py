"""Tools and reasoning through the openai client: what the scheduler is asked, and what the client gets."""

import json
from collections.abc import Callable, Iterator

import openai
import pytest

from support.live_front import LiveFront, tool_front

USER = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "A tool.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    for name in ("weather", "time")
]
CALLS = (
    'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {"city": "Rome"}}\n</tool_call>'
)
TEMPLATE = (
    "{% if tools %}TOOLS {{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %} CALL {{ c.function.name }} {{ c.function.arguments.city }}{% endfor %}\n"
    "{% endfor %}assistant:"
    "{% if enable_thinking is defined %}<think>\n{% if not enable_thinking %}\n</think>\n\n{% endif %}{% endif %}"
)
Say = Callable[..., list[int]]


@pytest.fixture(scope="module")
def live() -> Iterator[LiveFront]:
    with tool_front(TEMPLATE) as front:
        yield front


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens_a_step", [1, 7])
def test_a5_two_calls_have_indices_0_and_1(
    client: openai.OpenAI, live: LiveFront, say: Say, stream: bool, tokens_a_step: int
) -> None:
    """Reported case A5."""
    say("<think>\nWhich city?\n</think>\n\n" + CALLS, end=True)
    live.scheduler.tokens_a_step = tokens_a_step
    answer = client.chat.completions.create(model="smol", messages=USER, tools=TOOLS, max_tokens=200, stream=stream)
    if stream:
        calls: dict[int, dict[str, str]] = {}
        text = reasoning = ""
        for chunk in answer:
            choice = chunk.choices[0]
            text += choice.delta.content or ""
            reasoning += (choice.delta.model_extra or {}).get("reasoning_content") or ""
            for call in choice.delta.tool_calls or []:
                if call.id:
                    assert call.type == "function" and call.index == len(calls)
                    calls[call.index] = {"name": call.function.name, "arguments": "", "id": call.id}
                calls[call.index]["arguments"] += call.function.arguments
        reason = choice.finish_reason
        found = [(call["name"], call["arguments"]) for call in calls.values()]
        assert len({call["id"] for call in calls.values()}) == 2
    else:
        message = answer.choices[0].message
        text, reasoning = message.content, message.model_extra["reasoning_content"]
        found = [(call.function.name, call.function.arguments) for call in message.tool_calls]
        reason = answer.choices[0].finish_reason
    assert found == [("weather", '{"city": "Bern"}'), ("time", '{"city": "Rome"}')]
    assert (text, reasoning, reason) == ("Let me see.", "Which city?", "tool_calls")
    live.scheduler.tokens_a_step = 1


def test_tools_reach_the_template_and_auto_leaves_the_model_free(client: openai.OpenAI, live: LiveFront) -> None:
    client.chat.completions.create(model="smol", messages=USER, tools=TOOLS, max_tokens=1)
    assert 'TOOLS [{"type": "function"' in live.prompt() and '"weather"' in live.prompt()
    assert live.scheduler.generated()[-1].sampling.grammar is None
    client.chat.completions.create(model="smol", messages=USER, tools=TOOLS, tool_choice="none", max_tokens=1)
    assert "TOOLS" not in live.prompt()


def test_a_named_tool_ends_with_stop_as_openai_s_does(client: openai.OpenAI, say: Say) -> None:
    options = {"model": "smol", "messages": USER, "tools": TOOLS, "max_tokens": 200}
    for choice, reason in (({"type": "function", "function": {"name": "weather"}}, "stop"), ("required", "tool_calls")):
        say(CALLS, end=True)
        answer = client.chat.completions.create(**options, tool_choice=choice).choices[0]
        assert answer.message.tool_calls and answer.finish_reason == reason
        say(CALLS, end=True)
        chunks = list(client.chat.completions.create(**options, tool_choice=choice, stream=True))
        assert chunks[-1].choices[0].finish_reason == reason


def test_a_forced_call_that_is_cut_off_is_never_text(client: openai.OpenAI, say: Say) -> None:
    options = {"model": "smol", "messages": USER, "tools": TOOLS, "tool_choice": "required", "max_tokens": 200}
    whole = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
    for cut in range(1, len(whole) + 1, 3):
        say(whole[:cut], end=True)
        message = client.chat.completions.create(**options).choices[0].message
        assert not message.content
        begun = cut > whole.index('{"city"')
        assert [call.function.name for call in message.tool_calls or ()] == ["weather"] * begun


def test_a_strict_tool_is_kept_to_unasked(client: openai.OpenAI, live: LiveFront) -> None:
    strict = {**TOOLS[0], "function": {**TOOLS[0]["function"], "strict": True}}
    options = {"model": "smol", "messages": USER, "max_tokens": 1}
    client.chat.completions.create(**options, tools=[strict, TOOLS[1]])
    form = json.loads(live.scheduler.generated()[-1].sampling.grammar.text)["format"]
    assert form["type"] == "triggered_tags" and form["triggers"] == ["<tool_call>"] and not form["stop_after_first"]
    schemas = [tag["content"]["json_schema"] for tag in form["tags"]]
    assert schemas == [TOOLS[0]["function"]["parameters"], {"type": "object"}]
    client.chat.completions.create(**options, tools=[strict], tool_choice="none")
    assert live.scheduler.generated()[-1].sampling.grammar is None
    client.chat.completions.create(**options, tools=[strict], response_format={"type": "json_object"})
    assert live.scheduler.generated()[-1].sampling.grammar.kind == "json_object"


def test_without_tools_the_text_of_calls_is_text(client: openai.OpenAI, say: Say) -> None:
    say(CALLS, end=True)
    choice = client.chat.completions.create(model="smol", messages=USER, max_tokens=200).choices[0]
    assert choice.message.content == CALLS and choice.message.tool_calls is None and choice.finish_reason == "stop"


def test_calls_of_earlier_turns_are_objects_for_the_template(client: openai.OpenAI, live: LiveFront) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "rain"},
    ]
    client.chat.completions.create(model="smol", messages=messages, tools=TOOLS, max_tokens=1)
    assert "CALL weather Berntool: rain" in live.prompt()


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", ["weather", "time"]), ({"type": "function", "function": {"name": "time"}}, ["time"])],
)
def test_forced_calls_have_a_grammar_behind_the_reasoning(
    client: openai.OpenAI, live: LiveFront, choice: object, names: list[str]
) -> None:
    options = {"model": "smol", "messages": USER, "tools": TOOLS, "tool_choice": choice, "max_tokens": 1}
    client.chat.completions.create(**options, extra_body={"chat_template_kwargs": {"enable_thinking": True}})
    sampling = live.scheduler.generated()[-1].sampling
    assert sampling.grammar.kind == "structural_tag"
    form = json.loads(sampling.grammar.text)["format"]
    assert [f'"{name}"' in tag["begin"] for name, tag in zip(names, form["tags"], strict=True)] == [True] * len(names)
    assert form["at_least_one"] and form["stop_after_first"] == (choice != "required")
    assert sampling.grammar_after == tuple(live.tokenizer.encode("</think>"))
    client.chat.completions.create(
        **options, extra_body={"chat_template_kwargs": {"enable_thinking": False}}, parallel_tool_calls=False
    )
    sampling = live.scheduler.generated()[-1].sampling
    assert sampling.grammar_after == () and sampling.grammar_opening == -1
    assert json.loads(sampling.grammar.text)["format"]["stop_after_first"]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "structural_tag", "structures": [{"begin": "x"}]}}, "structural_tag"),
        ({"response_format": {"type": "json_object"}, "extra_body": {"regex": "a"}}, "response_format"),
        ({"extra_body": {"regex": "a", "ebnf": "b"}}, "ebnf"),
    ],
)
def test_what_cannot_work_is_refused_by_name(client: openai.OpenAI, options: dict[str, object], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="smol", messages=USER, **options)
    assert error.value.param == param


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"response_format": {"type": "text"}}, None, None),
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
                }
            },
            "json_schema",
            SCHEMA,
        ),
        (
            {
                "response_format": {
                    "type": "structural_tag",
                    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
                    "triggers": ["<f"],
                }
            },
            "structural_tag",
            {
                "type": "structural_tag",
                "format": {
                    "type": "triggered_tags",
                    "triggers": ["<f"],
                    "tags": [
                        {
                            "type": "tag",
                            "begin": "<f>",
                            "content": {"type": "json_schema", "json_schema": SCHEMA},
                            "end": "</f>",
                        }
                    ],
                },
            },
        ),
        ({"extra_body": {"regex": "a+"}}, "regex", "a+"),
        ({"extra_body": {"ebnf": 'root ::= "a"'}}, "ebnf", 'root ::= "a"'),
        ({"extra_body": {"json_schema": json.dumps(SCHEMA)}}, "json_schema", SCHEMA),
    ],
)
def test_grammars_reach_the_scheduler(
    client: openai.OpenAI, live: LiveFront, options: dict[str, object], kind: str | None, text: object
) -> None:
    extra = {**options.pop("extra_body", {}), "separate_reasoning": False}  # type: ignore[dict-item]
    client.chat.completions.create(model="smol", messages=USER, max_tokens=1, **options, extra_body=extra)
    grammar = live.scheduler.generated()[-1].sampling.grammar
    if kind is None:
        assert grammar is None
        return
    assert grammar.kind == kind
    assert (json.loads(grammar.text) if isinstance(text, dict) else grammar.text) == text


def test_native_fields_and_completions(live: LiveFront, client: openai.OpenAI) -> None:
    with live.client() as http:
        params = {"max_new_tokens": 1, "json_schema": json.dumps(SCHEMA)}
        assert http.post("/generate", json={"text": "x", "sampling_params": params}).status_code == 200
    assert live.scheduler.generated()[-1].sampling.grammar.kind == "json_schema"
    client.completions.create(
        model="smol", prompt="x", max_tokens=1, extra_body={"response_format": {"type": "json_object"}}
    )
    assert live.scheduler.generated()[-1].sampling.grammar.kind == "json_object"


def test_reasoning_can_stay_in_the_text(client: openai.OpenAI, say: Say) -> None:
    say("<think>a</think>b", end=True)
    options = {"model": "smol", "messages": USER, "max_tokens": 50}
    message = client.chat.completions.create(**options).choices[0].message
    assert (message.model_extra["reasoning_content"], message.content) == ("a", "b")
    message = client.chat.completions.create(**options, extra_body={"separate_reasoning": False}).choices[0].message
    assert message.content == "<think>a</think>b"


def test_logprobs_come_even_where_the_text_is_held_back(client: openai.OpenAI, say: Say) -> None:
    tokens = say(CALLS, end=True)
    chunks = client.chat.completions.create(
        model="smol", messages=USER, tools=TOOLS, max_tokens=200, stream=True, logprobs=True
    )
    found = [item for chunk in chunks if (logprobs := chunk.choices[0].logprobs) for item in logprobs.content]
    assert len(found) == len(tokens)


def test_the_native_parsing_routes(live: LiveFront) -> None:
    with live.client() as http:
        body = {"text": CALLS, "tools": TOOLS, "tool_call_parser": "qwen25"}
        assert http.post("/parse_function_call", json=body).json() == {
            "normal_text": "Let me see.",
            "calls": [
                {"tool_index": 0, "name": "weather", "parameters": '{"city": "Bern"}'},
                {"tool_index": 1, "name": "time", "parameters": '{"city": "Rome"}'},
            ],
        }
        body = {"text": "hm</think>\nyes", "reasoning_parser": "deepseek-r1"}
        assert http.post("/separate_reasoning", json=body).json() == {"reasoning_text": "hm", "text": "yes"}
        assert http.post("/separate_reasoning", json={**body, "reasoning_parser": "x"}).status_code == 400
        assert http.post("/parse_function_call", json={"text": "x"}).status_code == 400
