"""The parsers by the names of --tool-call-parser and --reasoning-parser."""

from collections.abc import Sequence
from typing import Literal

from sglang.srt.entrypoints.parsers.base import Parser
from sglang.srt.entrypoints.parsers.deepseek import deepseek
from sglang.srt.entrypoints.parsers.json_calls import hermes, llama3
from sglang.srt.entrypoints.parsers.qwen3_coder import qwen3_coder
from sglang.srt.entrypoints.parsers.reasoning import CLOSE, OPEN, ThinkParser
from sglang.srt.entrypoints.parsers.tools import ToolSpec
from sglang.srt.errors import RequestError

TOOL_PARSERS = ("hermes", "qwen", "qwen25", "qwen3_coder", "deepseekv3", "deepseekv31", "llama3")
REASONING_PARSERS = ("deepseek-r1", "qwen3")

ReasoningState = Literal["inside", "over", "open"]
"""Of an output's beginning: within a reasoning, behind it, or where one may begin."""


def tool_parser(name: str, tools: Sequence[ToolSpec]) -> Parser:
    """Raises RequestError for an unknown name."""
    match name:
        case "hermes" | "qwen" | "qwen25":
            return hermes()
        case "qwen3_coder":
            return qwen3_coder(tools)
        case "deepseekv3" | "deepseekv31":
            return deepseek()
        case "llama3":
            return llama3()
        case _:
            raise RequestError(f"no tool call parser {name!r}; there are {', '.join(TOOL_PARSERS)}")


def reasoning_parser(name: str, *, inside: bool) -> Parser:
    """`inside`: the text continues a reasoning. Raises RequestError for an unknown name."""
    if name not in REASONING_PARSERS:
        raise RequestError(f"no reasoning parser {name!r}; there are {', '.join(REASONING_PARSERS)}")
    return ThinkParser(inside=inside)


def reasoning_state(name: str, prompt: str) -> ReasoningState:
    """Where what the model says after `prompt` begins. Without a tag at the prompt's end, DeepSeek-R1 reasons
    unasked, and Qwen3 decides itself.
    """
    end = prompt.rstrip()
    if end.endswith(OPEN):
        return "inside"
    if end.endswith(CLOSE):
        return "over"
    return "inside" if name == "deepseek-r1" else "open"
