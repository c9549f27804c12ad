"""Structural tags that hold an output to calls of given tools, in the format that each parser reads."""

import json
from collections.abc import Sequence
from typing import Any

from sglang.srt.core.grammar import GrammarSpec
from sglang.srt.entrypoints.parsers.deepseek import CALL, CALL_END, CALLS, CALLS_END, FENCE, SEPARATOR
from sglang.srt.entrypoints.parsers.json_calls import HERMES_CLOSE, HERMES_OPEN
from sglang.srt.entrypoints.parsers.tools import ToolSpec
from sglang.srt.errors import RequestError

Format = dict[str, Any]


def forced_calls(parser: str, tools: Sequence[ToolSpec], *, several: bool) -> GrammarSpec:
    """A grammar of one call (or `several`) and nothing else. Raises RequestError for an unknown parser."""
    match parser:
        case "hermes" | "qwen" | "qwen25":
            form = _tags([_hermes(tool) for tool in tools], "\n", several)
        case "qwen3_coder":
            form = _tags([_xml(tool) for tool in tools], "\n", several)
        case "llama3":
            form = _tags([_llama(tool) for tool in tools], "; ", several)
        case "deepseekv3":
            form = _between(_tags([_deepseek(tool) for tool in tools], "\n", several))
        case "deepseekv31":
            form = _between(_tags([_deepseek31(tool) for tool in tools], "", several))
        case _:
            raise RequestError(f"tools cannot be forced with the tool call parser {parser!r}", param="tool_choice")
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
    return _tag(f'{{"name": {json.dumps(tool.name)}, "parameters": ', tool, "}")


def _xml(tool: ToolSpec) -> Format:
    begin = f"<tool_call>\n<function={tool.name}>\n"
    return _tag(begin, tool, "\n</function>\n</tool_call>", style="qwen_xml")


def _deepseek(tool: ToolSpec) -> Format:
    return _tag(f"{CALL}function{SEPARATOR}{tool.name}\n{FENCE}\n", tool, f"\n```{CALL_END}")


def _deepseek31(tool: ToolSpec) -> Format:
    return _tag(f"{CALL}{tool.name}{SEPARATOR}", tool, CALL_END)


def _between(calls: Format) -> Format:
    marks = [{"type": "const_string", "value": mark} for mark in (CALLS, CALLS_END)]
    return {"type": "sequence", "elements": [marks[0], calls, marks[1]]}
