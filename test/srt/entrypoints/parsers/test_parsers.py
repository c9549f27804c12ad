"""Parsers of tool calls and reasoning: what they find, and that the cutting of the text does not matter."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang.srt.entrypoints.parsers.base import CallArguments, CallStart, Parser, Reasoning, Text
from sglang.srt.entrypoints.parsers.deepseek import CALL, CALL_END, CALLS, CALLS_END, SEPARATOR
from sglang.srt.entrypoints.parsers.reasoning import ThinkParser
from sglang.srt.entrypoints.parsers.registry import TOOL_PARSERS, reasoning_parser, reasoning_state, tool_parser
from sglang.srt.entrypoints.parsers.tools import ToolSpec
from sglang.srt.errors import RequestError

WEATHER = ToolSpec(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "flags": {"type": ["array", "null"]},
            "deep": {"anyOf": [{"type": "object"}, {"type": "boolean"}]},
        },
    },
)
TIME = ToolSpec(name="now", parameters={"type": "object", "properties": {}})
TOOLS = (WEATHER, TIME)


@dataclass
class Joined:
    """Events, joined."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


def run(parser: Parser, pieces: Sequence[str]) -> Joined:
    joined = Joined()
    for event in [event for piece in pieces for event in parser.push(piece)] + parser.finish():
        match event:
            case Text(text):
                assert text
                joined.text += text
            case Reasoning(text):
                assert text
                joined.reasoning += text
            case CallStart(index, name):
                assert index == len(joined.calls), "calls are numbered from 0"
                joined.calls.append((name, ""))
            case CallArguments(index, fragment):
                assert index == len(joined.calls) - 1 and fragment
                name, so_far = joined.calls[index]
                joined.calls[index] = (name, so_far + fragment)
    return joined


def hermes(*calls: tuple[str, str]) -> str:
    return "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>' for name, arguments in calls
    )


def llama(*calls: tuple[str, str]) -> str:
    return "; ".join(f'{{"name": "{name}", "parameters": {arguments}}}' for name, arguments in calls)


def deepseek3(*calls: tuple[str, str]) -> str:
    body = "\n".join(f"{CALL}function{SEPARATOR}{name}\n```json\n{args}\n```{CALL_END}" for name, args in calls)
    return f"{CALLS}{body}{CALLS_END}"


def deepseek31(*calls: tuple[str, str]) -> str:
    return CALLS + "".join(f"{CALL}{name}{SEPARATOR}{args}{CALL_END}" for name, args in calls) + CALLS_END


def xml(*calls: tuple[str, str]) -> str:
    texts = []
    for name, arguments in calls:
        pairs = json.loads(arguments).items()
        values = [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in pairs]
        body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values)
        texts.append(f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>")
    return "\n".join(texts)


FORMATS: dict[str, Callable[..., str]] = {
    "hermes": hermes,
    "qwen25": hermes,
    "llama3": llama,
    "deepseekv3": deepseek3,
    "deepseekv31": deepseek31,
    "qwen3_coder": xml,
}
ARGUMENTS = [
    '{"city": "Z\u00fcrich", "days": 3}',
    '{"city": "a } ] \\" </tool_call> {", "deep": {"x": [1, {"y": null}]}}',
    "{}",
    '{"flags": [1, 2], "deep": true}',
]
if_xml = '{"city": "two\\nlines & <b> {", "days": -1}'


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("arguments", [*ARGUMENTS, if_xml])
def test_a5_two_calls_with_text_before_them(name: str, arguments: str) -> None:
    if name == "qwen3_coder" and "</tool_call>" in arguments:
        arguments = arguments.replace("</tool_call>", "<tag>")
    text = "Let me look.\n" + FORMATS[name](("get_weather", arguments), ("now", "{}"))
    joined = run(tool_parser(name, TOOLS), [text])
    assert joined.text == "Let me look."
    assert [call[0] for call in joined.calls] == ["get_weather", "now"]
    assert [json.loads(call[1]) for call in joined.calls] == [json.loads(arguments), {}]


FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<function=get_weather>", "<function=", "</function>", "<parameter=city>",
    "<parameter=", "</parameter>", CALLS, CALLS_END, CALL, CALL_END, SEPARATOR, "function", "```json", "```",
    "<|python_tag|>", "{", "}", '{"name": "now", "arguments": {}}', '{"name": "now", "parameters": {"a": [1, "}"]}}',
    '"name"', ":", ",", ";", '"', "\\", "\n", " ", "<", "5", "true", '{"parameters": {"x": 1}, "name": "now"}',
    "<think>", "</think>", "<th", "ink>", "text", "\u4e16", '{"name": "x", "arguments": "{\\"a\\": 1}"}',
]  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=3)), max_size=12).map("".join)


def cut(text: str, seed: int) -> list[str]:
    rng = random.Random(seed)
    marks = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(12)))
    return [text[a:b] for a, b in zip([0, *marks], [*marks, len(text)], strict=True)]


@settings(max_examples=400, deadline=None)
@given(text=texts, seed=st.integers(0, 1 << 30))
@pytest.mark.parametrize("name", sorted(set(TOOL_PARSERS) - {"qwen", "qwen25", "deepseekv31"}))
def test_cutting_does_not_matter_to_tool_parsers(name: str, text: str, seed: int) -> None:
    whole = run(tool_parser(name, TOOLS), [text])
    assert run(tool_parser(name, TOOLS), cut(text, seed)) == whole
    assert run(tool_parser(name, TOOLS), list(text)) == whole
    if not whole.calls and not any(mark in text for mark in FRAGMENTS[:11]):
        assert whole.text == text, "text without calls is passed on as it is"


@settings(max_examples=400, deadline=None)
@given(text=texts, seed=st.integers(0, 1 << 30), inside=st.booleans())
def test_cutting_does_not_matter_to_reasoning_parsers(text: str, seed: int, inside: bool) -> None:
    whole = run(ThinkParser(inside=inside), [text])
    assert run(ThinkParser(inside=inside), cut(text, seed)) == whole
    assert run(ThinkParser(inside=inside), list(text)) == whole


@pytest.mark.parametrize("name", FORMATS)
def test_arguments_stream_before_the_call_ends(name: str) -> None:
    text = FORMATS[name](("get_weather", '{"city": "Paris", "days": 12345}'), ("now", "{}"))
    parser = tool_parser(name, TOOLS)
    seen = [(event, position) for position, piece in enumerate(text) for event in parser.push(piece)]
    start = next(position for event, position in seen if isinstance(event, CallStart))
    first = next(position for event, position in seen if isinstance(event, CallArguments))
    second = next(position for event, position in seen if isinstance(event, CallStart) and event.index == 1)
    assert start <= first < second - 10


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "a < b, <tool_cal"),
        ("hermes", "  no call "),
        ("hermes", "<tool_call>nothing</tool_call>"),
        ("hermes", '<tool_call>\n{"name": "f'),
        ("llama3", '{"a": {"b": 1}} and {"name": "x"} and {'),
        ("llama3", 'def f() {\n  return {"a": {}} }\n'),
        ("llama3", '<|python_tag|>print("hi")'),
        ("qwen3_coder", "a <function"),
        ("deepseekv3", f"x {CALL}function{SEPARATOR}f"),
    ],
)
def test_what_is_no_call_is_text(name: str, text: str) -> None:
    joined = run(tool_parser(name, TOOLS), [text])
    assert joined.text == text and not joined.calls


def test_a_call_that_is_cut_off_has_begun() -> None:
    joined = run(tool_parser("hermes", TOOLS), ['<tool_call>\n{"name": "f", "arguments": {"a": 1'])
    assert joined.calls == [("f", '{"a": 1')] and joined.text == ""


def test_arguments_in_front_of_the_name_and_as_a_string() -> None:
    text = '<tool_call>{"arguments": {"a": 1}, "id": 5, "name": "f"}</tool_call>'
    assert run(tool_parser("hermes", TOOLS), [text]).calls == [("f", '{"a": 1}')]
    text = '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>'
    assert run(tool_parser("hermes", TOOLS), [text]).calls == [("f", '{"a": 1}')]


def test_qwen3_coder_types_follow_the_schema() -> None:
    body = "<parameter=city>\n12\n</parameter><parameter=days>\n12\n<parameter=deep>True</parameter>"
    text = f"<function=get_weather>{body}<parameter=other>7</parameter></function>"
    (call,) = run(tool_parser("qwen3_coder", TOOLS), [text]).calls
    assert json.loads(call[1]) == {"city": "12", "days": 12, "deep": True, "other": "7"}
    broken = "<function=get_weather><parameter=days>soon</parameter></function>"
    assert json.loads(run(tool_parser("qwen3_coder", TOOLS), [broken]).calls[0][1]) == {"days": "soon"}


@pytest.mark.parametrize(
    ("inside", "text", "reasoning", "answer"),
    [
        (False, "<think>\nhm, <b>\n</think>\n\nYes </think> no", "hm, <b>", "Yes </think> no"),
        (False, " Yes", "", " Yes"),
        (False, "a <think>b</think>", "", "a <think>b</think>"),
        (True, "hm\n</think>\nYes", "hm", "Yes"),
        (True, "<think>hm</think>Yes", "hm", "Yes"),
        (True, "only reasoning ", "only reasoning", ""),
        (False, "<think></think>\n\n", "", ""),
        (False, "<thi", "", "<thi"),
        (True, "a </thin", "a </thin", ""),
    ],
)
def test_reasoning(inside: bool, text: str, reasoning: str, answer: str) -> None:
    joined = run(ThinkParser(inside=inside), [text])
    assert (joined.reasoning, joined.text) == (reasoning, answer)


@pytest.mark.parametrize(
    ("name", "prompt", "state"),
    [
        ("qwen3", "<|im_start|>assistant\n", "open"),
        ("qwen3", "<|im_start|>assistant\n<think>\n", "inside"),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "over"),
        ("qwen3", "<think>old</think> answer<|im_end|>assistant\n", "open"),
        ("deepseek-r1", "<Assistant>", "inside"),
        ("deepseek-r1", "user: what is <think>?<Assistant>", "inside"),
        ("deepseek-r1", "<Assistant></think>", "over"),
    ],
)
def test_the_prompt_says_whether_reasoning_has_begun(name: str, prompt: str, state: str) -> None:
    assert reasoning_state(name, prompt) == state


def test_unknown_names_are_refused() -> None:
    with pytest.raises(RequestError, match="hermes"):
        tool_parser("x", ())
    with pytest.raises(RequestError, match="qwen3"):
        reasoning_parser("x", inside=False)
