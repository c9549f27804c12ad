"""A forced tool call is what its parser reads: each format through both grammar libraries."""

import json
from collections.abc import Iterator

import msgspec
import pytest
from tokenizers import Tokenizer

from conformance.grammar_backends import END, MODEL, Walker
from sglang.srt.constrained.base import GrammarBackend, GrammarError
from sglang.srt.constrained.limits import GrammarLimits
from sglang.srt.constrained.llguidance_backend import LLGuidanceBackend
from sglang.srt.constrained.vocabulary import load_vocabulary
from sglang.srt.constrained.xgrammar_compiler import XGrammarCompiler
from sglang.srt.entrypoints.parsers.base import CallArguments, CallStart, Event
from sglang.srt.entrypoints.parsers.constraints import forced_calls, strict_calls
from sglang.srt.entrypoints.parsers.deepseek import CALL, CALL_END, CALLS, CALLS_END, SEPARATOR
from sglang.srt.entrypoints.parsers.registry import TOOL_PARSERS, tool_parser
from sglang.srt.entrypoints.parsers.tools import ToolSpec
from sglang.srt.errors import RequestError

TOOLS = tuple(
    ToolSpec(
        name=name,
        parameters={
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    )
    for name in ("weather", "forecast")
)
ARGUMENTS = '{"city": "Z\u00fcrich", "days": 3}'
XML = (
    "<tool_call>\n<function=NAME>\n<parameter=city>\nZ\u00fcrich\n</parameter>\n<parameter=days>\n3\n</parameter>"
    "\n</function>\n</tool_call>"
)
FORMS = {
    "hermes": ("", '<tool_call>\n{"name": "NAME", "arguments": ARGS}\n</tool_call>', "\n", ""),
    "llama3": ("", '{"name": "NAME", "parameters": ARGS}', "; ", ""),
    "deepseekv3": (CALLS, f"{CALL}function{SEPARATOR}NAME\n```json\nARGS\n```{CALL_END}", "\n", CALLS_END),
    "deepseekv31": (CALLS, f"{CALL}NAME{SEPARATOR}ARGS{CALL_END}", "", CALLS_END),
    "qwen3_coder": ("", XML, "\n", ""),
}
"""Text before the calls, a call, between two, behind them."""


def text_of(parser: str, *names: str) -> str:
    head, form, separator, tail = FORMS[parser]
    return head + separator.join(form.replace("NAME", name).replace("ARGS", ARGUMENTS) for name in names) + tail


@pytest.fixture(scope="module")
def walker() -> Walker:
    coder = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    return Walker(load_vocabulary(MODEL, 49152, (END,)), lambda text: coder.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="module", params=["xgrammar", "llguidance"])
def backend(request: pytest.FixtureRequest, walker: Walker) -> Iterator[GrammarBackend]:
    if request.param == "xgrammar":
        yield XGrammarCompiler(walker.vocabulary, whitespace=True)  # type: ignore[misc] # without the helper process
    else:
        yield LLGuidanceBackend(walker.vocabulary, GrammarLimits(), whitespace=True)


def read(parser: str, text: str) -> list[tuple[str, str]]:
    reader = tool_parser(parser, TOOLS)
    events: list[Event] = reader.push(text) + reader.finish()
    names = [event.name for event in events if isinstance(event, CallStart)]
    assert all(isinstance(event, CallStart | CallArguments) for event in events), "no text beside the calls"
    return [
        (name, "".join(e.fragment for e in events if isinstance(e, CallArguments) and e.index == index))
        for index, name in enumerate(names)
    ]


@pytest.mark.parametrize("parser", sorted(FORMS))
def test_what_is_forced_is_what_is_read(parser: str, backend: GrammarBackend, walker: Walker) -> None:
    several = forced_calls(parser, TOOLS, several=True)
    if parser == "qwen3_coder" and isinstance(backend, LLGuidanceBackend):
        with pytest.raises(GrammarError, match="this style"):
            backend.compile(several)
        return
    text = text_of(parser, "weather", "forecast")
    assert [(name, json.loads(args)) for name, args in read(parser, text)] == [
        ("weather", json.loads(ARGUMENTS)),
        ("forecast", json.loads(ARGUMENTS)),
    ]
    matcher = backend.compile(several).matcher()
    assert walker.feed(matcher, text) and walker.allowed(matcher)[END]
    one = backend.compile(forced_calls(parser, TOOLS[:1], several=False))
    matcher = one.matcher()
    assert walker.feed(matcher, text_of(parser, "weather")) and list(walker.allowed(matcher).nonzero()[0]) == [END]
    for wrong in (text_of(parser, "forecast"), "Let me think", text_of(parser, "weather").replace("3", "x")):
        assert not walker.feed(one.matcher(), wrong), wrong


@pytest.mark.parametrize("parser", sorted(FORMS))
def test_strict_tools_are_held_to_their_schema_and_text_stays_free(
    parser: str, backend: GrammarBackend, walker: Walker
) -> None:
    strict, loose = (msgspec.structs.replace(tool, strict=index == 0) for index, tool in enumerate(TOOLS))
    grammar = strict_calls(parser, (strict, loose), several=True)
    if parser == "qwen3_coder" and isinstance(backend, LLGuidanceBackend):
        with pytest.raises(GrammarError, match="this style"):
            backend.compile(grammar)
        return
    compiled = backend.compile(grammar)
    call = text_of(parser, "weather")
    for right in ("No call.", call, "Let me see.\n" + call, text_of(parser, "forecast")):
        matcher = compiled.matcher()
        assert walker.feed(matcher, right) and walker.allowed(matcher)[END], right
    assert walker.feed(compiled.matcher(), text_of(parser, "forecast").replace("3", "null"))
    for wrong in (call.replace("3", "x"), call.replace("weather", "whether")):
        assert not walker.feed(compiled.matcher(), wrong), wrong


def test_every_parser_can_be_forced() -> None:
    assert all(forced_calls(parser, TOOLS, several=True) for parser in TOOL_PARSERS)
    with pytest.raises(RequestError):
        forced_calls("x", TOOLS, several=True)
