"""Tools and reasoning in OpenAI's responses and Anthropic's messages, through their own clients."""

import json
from collections.abc import Callable, Iterator

import anthropic
import openai
import pytest

from sglang.srt.entrypoints.parsers.base import CallArguments, CallStart, Event, Reasoning, Text
from sglang.srt.entrypoints.parsers.items import Closed, Grown, ItemList, Opened
from support.live_front import LiveFront, tool_front

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TEMPLATE = (
    "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %} CALL {{ c.function.name }} {{ c.function.arguments.city }}{% endfor %}\n"
    "{% endfor %}assistant:"
)
SAID = (
    "<think>\nWhich city?\n</think>\n\nLet me see.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {"city": "Rome"}}\n</tool_call>'
)
Say = Callable[..., list[int]]


@pytest.fixture(scope="module")
def live() -> Iterator[LiveFront]:
    with tool_front(TEMPLATE) as front:
        yield front


@pytest.fixture
def claude(live: LiveFront) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=live.url, api_key="none", max_retries=0, timeout=20) as made:
        yield made


def test_items_follow_each_other() -> None:
    events: list[Event] = [
        Reasoning("a"),
        Reasoning("b"),
        Text("c"),
        CallStart(0, "f"),
        CallArguments(0, "{"),
        CallArguments(0, "}"),
        CallStart(1, "g"),
        Text("d"),
    ]
    made = ItemList()
    steps = [step for event in events for step in made.push([event])] + made.finish()
    assert [(i.kind, i.name, i.text) for i in made.items] == [
        ("reasoning", "", "ab"),
        ("text", "", "c"),
        ("call", "f", "{}"),
        ("call", "g", ""),
        ("text", "", "d"),
    ]
    for item in made.items:
        mine = [type(step) for step in steps if step.item is item]
        assert mine[0] is Opened and mine[-1] is Closed and set(mine[1:-1]) <= {Grown}
    assert [step.item.number for step in steps] == sorted(step.item.number for step in steps)
    assert made.called
    silent = ItemList()
    assert [type(step) for step in silent.finish()] == [Opened, Closed] and silent.items[0].kind == "text"


@pytest.mark.parametrize("tokens_a_step", [1, 7])
def test_a_response_has_reasoning_text_and_calls(
    client: openai.OpenAI, live: LiveFront, say: Say, tokens_a_step: int
) -> None:
    tools = [{"type": "function", "name": name, "parameters": SCHEMA, "strict": False} for name in ("weather", "time")]
    asked = {"model": "smol", "input": "hi", "tools": tools, "max_output_tokens": 200}
    say(SAID, end=True)
    live.scheduler.tokens_a_step = tokens_a_step
    whole = client.responses.create(**asked)
    assert [item.type for item in whole.output] == ["reasoning", "message", "function_call", "function_call"]
    assert whole.output[0].content[0].text == "Which city?" and whole.output_text == "Let me see."
    calls = [(item.name, item.arguments) for item in whole.output[2:]]
    assert calls == [("weather", '{"city": "Bern"}'), ("time", '{"city": "Rome"}')] and whole.status == "completed"
    assert len({item.call_id for item in whole.output[2:]}) == 2 and whole.tools[0].name == "weather"
    assert 'TOOLS [{"type": "function"' in live.prompt()
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        last = stream.get_final_response()
    live.scheduler.tokens_a_step = 1
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [(i.type, i.status) for i in last.output] == [(i.type, "completed") for i in whole.output]
    assert [(i.name, i.arguments) for i in last.output[2:]] == calls
    for index, item in enumerate(last.output[2:], 2):
        pieces = [
            e.delta for e in events if e.type == "response.function_call_arguments.delta" and e.output_index == index
        ]
        assert "".join(pieces) == item.arguments
    thoughts = "".join(e.delta for e in events if e.type == "response.reasoning_text.delta")
    assert thoughts == "Which city?"


def test_a_conversation_of_calls_goes_on(client: openai.OpenAI, live: LiveFront, say: Say) -> None:
    say("Rain.", end=True)
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bern"}'}
    said = [
        {"role": "user", "content": "Weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        call,
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    ]
    assert client.responses.create(model="smol", input=said, max_output_tokens=50).output_text == "Rain."
    assert "user: Weather?assistant:  CALL weather Berntool: rainassistant:" in live.prompt()


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": [{"type": "computer_call"}]}, "input"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "input"),
        ({"input": [{"type": "reasoning"}]}, "input"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
    ],
)
def test_what_a_response_cannot_have_is_refused_by_name(
    client: openai.OpenAI, options: dict[str, object], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(**{"model": "smol", "input": "x", **options})
    assert error.value.param == param


@pytest.mark.parametrize(
    ("tool", "said"),
    [({"type": "web_search"}, "'web_search' are not supported"), ({"type": "function"}, "a function has a name")],
)
def test_a_tool_without_a_name_is_refused_for_what_it_is(
    client: openai.OpenAI, tool: dict[str, str], said: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=said) as error:
        client.responses.create(model="smol", input="x", tools=[tool])
    assert error.value.param == "tools"


def test_a_response_s_schema_and_forced_tool_reach_the_scheduler(client: openai.OpenAI, live: LiveFront) -> None:
    form = {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}
    client.responses.create(model="smol", input="x", max_output_tokens=1, text={"format": form})
    grammar = live.scheduler.generated()[-1].sampling.grammar
    assert grammar.kind == "json_schema" and json.loads(grammar.text) == SCHEMA
    tool = {"type": "function", "name": "time", "parameters": SCHEMA, "strict": True}
    choice = {"type": "function", "name": "time"}
    client.responses.create(model="smol", input="x", max_output_tokens=1, tools=[tool], tool_choice=choice)
    assert live.scheduler.generated()[-1].sampling.grammar.kind == "structural_tag"


@pytest.mark.parametrize("tokens_a_step", [1, 7])
def test_a_message_has_thinking_text_and_tool_use(
    claude: anthropic.Anthropic, live: LiveFront, say: Say, tokens_a_step: int
) -> None:
    asked = {
        "model": "smol",
        "max_tokens": 200,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": name, "description": "A tool.", "input_schema": SCHEMA} for name in ("weather", "time")],
    }
    say(SAID, end=True)
    live.scheduler.tokens_a_step = tokens_a_step
    whole = claude.messages.create(**asked)
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert whole.content[0].thinking == "Which city?" and whole.content[1].text == "Let me see."
    found = [(block.name, block.input) for block in whole.content[2:]]
    assert found == [("weather", {"city": "Bern"}), ("time", {"city": "Rome"})] and whole.stop_reason == "tool_use"
    with claude.messages.stream(**asked) as stream:
        last = stream.get_final_message()
    live.scheduler.tokens_a_step = 1
    assert [(b.name, b.input) for b in last.content[2:]] == found and last.stop_reason == "tool_use"
    assert last.content[0].thinking == "Which city?" and last.content[1].text == "Let me see."


def test_a_conversation_of_tool_use_goes_on(claude: anthropic.Anthropic, live: LiveFront, say: Say) -> None:
    say("Rain.", end=True)
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Bern"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]}
    said = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""}, use]},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    answer = claude.messages.create(model="smol", max_tokens=50, messages=said)
    assert answer.content[0].text == "Rain." and answer.stop_reason == "end_turn"
    shown = "user: Weather?assistant:  CALL weather Berntool: rainuser: So?assistant:"
    assert shown in live.prompt()
    counted = claude.messages.count_tokens(model="smol", messages=said).input_tokens
    assert counted == len(live.scheduler.generated()[-1].token_ids)


@pytest.mark.parametrize("kind", ["any", "tool"])
def test_a_message_can_force_a_tool(claude: anthropic.Anthropic, live: LiveFront, kind: str) -> None:
    choice = {"type": kind, **({"name": "time"} if kind == "tool" else {}), "disable_parallel_tool_use": True}
    tools = [{"name": name, "input_schema": SCHEMA} for name in ("weather", "time")]
    said = [{"role": "user", "content": "hi"}]
    claude.messages.create(model="smol", max_tokens=1, messages=said, tools=tools, tool_choice=choice)
    form = json.loads(live.scheduler.generated()[-1].sampling.grammar.text)["format"]
    assert len(form["tags"]) == (2 if kind == "any" else 1) and form["stop_after_first"]
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(model="smol", max_tokens=1, messages=said, tools=tools, tool_choice={"type": "tool"})
