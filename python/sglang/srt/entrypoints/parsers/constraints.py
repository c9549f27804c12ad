"""Structural tags that hold calls to given tools and their schemas, in the format that each parser reads."""

import json
from collections.abc import Sequence
from typing import Any

from sglang.srt.core.grammar import GrammarSpec
from sglang.srt.entrypoints.parsers.deepseek import CALL, CALL_END, CALLS, CALLS_END, FENCE, SEPARATOR
from sglang.srt.entrypoints.parsers.json_calls import HERMES_CLOSE, HERMES_OPEN
from sglang.srt.entrypoints.parsers.tools import ToolSpec
from sglang.srt.errors import RequestError

Format = dict[str, Any]

XML_OPEN = "<tool_call>"
LLAMA_OPEN = '{"name": '


def forced_calls(parser: str, tools: Sequence[ToolSpec], *, several: bool) -> GrammarSpec:
    """A grammar of one call (or `several`) and nothing else. Raises RequestError for an unknown parser."""
    mark, calls = _calls(parser, tools, several)
    return _spec(_between(calls) if mark == CALLS else calls)


def strict_calls(parser: str, tools: Sequence[ToolSpec], *, several: bool) -> GrammarSpec:
    """A grammar of any text in which every call is one of `tools`, with arguments of its schema where it is strict.

    Raises RequestError for an unknown parser.
    """
    loose: dict[str, Any] = {"type": "object"}
    kept = [tool if tool.strict else ToolSpec(name=tool.name, parameters=loose) for tool in tools]
    mark, calls = _calls(parser, kept, several)
    tags = calls["tags"]
    if mark == CALLS:
        tags = [{"type": "tag", "begin": CALLS, "content": calls, "end": CALLS_END}]
    once = not several or mark == CALLS
    return _spec({"type": "triggered_tags", "triggers": [mark], "tags": tags, "stop_after_first": once})


def _calls(parser: str, tools: Sequence[ToolSpec], several: bool) -> tuple[str, Format]:
    """(the text that every call, or all of them together, begin with; the calls)."""
    match parser:
        case "hermes" | "qwen" | "qwen25":
            return HERMES_OPEN, _tags([_hermes(tool) for tool in tools], "\n", several)
        case "qwen3_coder":
            return XML_OPEN, _tags([_xml(tool) for tool in tools], "\n", several)
        case "llama3":
            return LLAMA_OPEN, _tags([_llama(tool) for tool in tools], "; ", several)
        case "deepseekv3":
            return CALLS, _tags([_deepseek(tool) for tool in tools], "\n", several)
        case "deepseekv31":
            return CALLS, _tags([_deepseek31(tool) for tool in tools], "", several)
        case _:
            raise RequestError(f"tools cannot be forced with the tool call parser {parser!r}", param="tool_choice")


def _spec(form: Format) -> GrammarSpec:
    text = json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)
    return GrammarSpec(kind="structural_tag", text=text)


def _tags(tags: list[Format], separator: str, several: bool) -> Format:
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not several,
    }


def _tag(begin: str, tool: ToolSpec, end: str, style: str = "json") -> Format:
    content: Format = {"type": "json_schema", "json_schema": tool.parameters}
    if style != "json":
        content["style"] = style
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _hermes(tool: ToolSpec) -> Format:
    name = json.dumps(tool.name)
    return _tag(f'{HERMES_OPEN}\n{{"name": {name}, "arguments": ', tool, f"}}\n{HERMES_CLOSE}")


def _llama(tool: ToolSpec) -> Format:
    return _tag(f'{LLAMA_OPEN}{json.dumps(tool.name)}, "parameters": ', tool, "}")


def _xml(tool: ToolSpec) -> Format:
    begin = f"{XML_OPEN}\n<function={tool.name}>\n"
    return _tag(begin, tool, "\n</function>\n</tool_call>", style="qwen_xml")


def _deepseek(tool: ToolSpec) -> Format:
    return _tag(f"{CALL}function{SEPARATOR}{tool.name}\n{FENCE}\n", tool, f"\n```{CALL_END}")


def _deepseek31(tool: ToolSpec) -> Format:
    return _tag(f"{CALL}{tool.name}{SEPARATOR}", tool, CALL_END)


def _between(calls: Format) -> Format:
    marks = [{"type": "const_string", "value": mark} for mark in (CALLS, CALLS_END)]
    return {"type": "sequence", "elements": [marks[0], calls, marks[1]]}
