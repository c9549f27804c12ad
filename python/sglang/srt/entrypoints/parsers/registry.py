"""The parsers by the names of --tool-call-parser and --reasoning-parser."""

from collections.abc import Sequence

from sglang.srt.entrypoints.parsers.base import Parser
from sglang.srt.entrypoints.parsers.deepseek import deepseek
from sglang.srt.entrypoints.parsers.json_calls import hermes, llama3
from sglang.srt.entrypoints.parsers.qwen3_coder import qwen3_coder
from sglang.srt.entrypoints.parsers.reasoning import CLOSE, OPEN, ThinkParser
from sglang.srt.entrypoints.parsers.tools import ToolSpec
from sglang.srt.errors import RequestError

TOOL_PARSERS = ("hermes", "qwen", "qwen25", "qwen3_coder", "deepseekv3", "deepseekv31", "llama3")
REASONING_PARSERS = ("deepseek-r1", "qwen3")


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


def begins_inside(name: str, prompt: str) -> bool:
    """Whether what the model says after `prompt` continues a reasoning.

    The prompt's last tag says so; without any, DeepSeek-R1 reasons unasked.
    """
    opened, closed = prompt.rfind(OPEN), prompt.rfind(CLOSE)
    if opened == closed:
        return name == "deepseek-r1"
    tail = prompt[max(opened, closed) :]
    # A tag in an earlier message says nothing about this answer: only white space may follow.
    if tail.removeprefix(OPEN).removeprefix(CLOSE).strip():
        return name == "deepseek-r1"
    return opened > closed
