"""How a conversation's answer is read and constrained: reasoning, tool calls, response_format."""

from collections.abc import Sequence

import msgspec

from sglang.srt.config.server import ServerConfig
from sglang.srt.core.sampling import SamplingParams
from sglang.srt.entrypoints.openai.protocol import ChatBody
from sglang.srt.entrypoints.openai.tools import NamedTool
from sglang.srt.entrypoints.parsers.base import Parser, PlainText
from sglang.srt.entrypoints.parsers.chain import CallsOnly, ChainedParser
from sglang.srt.entrypoints.parsers.constraints import forced_calls, strict_calls
from sglang.srt.entrypoints.parsers.reasoning import CLOSE, OPEN
from sglang.srt.entrypoints.parsers.registry import ReasoningState, reasoning_parser, reasoning_state, tool_parser
from sglang.srt.entrypoints.parsers.tools import ToolSpec
from sglang.srt.errors import RequestError
from sglang.srt.managers.tokenizer import Tokenizer

SPELT_SPECIAL = ("deepseekv3", "deepseekv31", "llama3")
"""Formats whose marks are special tokens in some checkpoints: the text must show them."""


class ChatParsing(msgspec.Struct, frozen=True, kw_only=True):
    """What to look for in an answer."""

    reasoning: str = ""
    """The reasoning parser; empty for none."""
    state: ReasoningState = "over"
    tool_calls: str = ""
    """The tool call parser; empty for none."""
    tools: tuple[ToolSpec, ...] = ()
    forced: tuple[ToolSpec, ...] = ()
    """The tools one of which must be called."""
    named: bool = False
    """The client named that tool: OpenAI ends such an output with "stop", not "tool_calls"."""
    several: bool = True

    def parser(self) -> Parser:
        """A parser of one output."""
        calls = tool_parser(self.tool_calls, self.tools) if self.tool_calls else PlainText()
        if self.forced:
            calls = CallsOnly(calls)
        if not self.reasoning:
            return calls
        return ChainedParser(reasoning_parser(self.reasoning, inside=self.state == "inside"), calls)

    @property
    def plain(self) -> bool:
        """Whether there is nothing to look for."""
        return not (self.reasoning or self.tool_calls)

    @property
    def show_special(self) -> bool:
        """Whether special tokens must be in the text."""
        return self.tool_calls in SPELT_SPECIAL

    def constrain(self, sampling: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
        """`sampling` with the grammar of forced calls, and any grammar put behind the reasoning."""
        grammar = sampling.grammar
        if self.forced:
            if grammar is not None:
                raise RequestError("tool_choice: forced calls cannot go with another grammar", param="tool_choice")
            grammar = forced_calls(self.tool_calls, self.forced, several=self.several)
        elif grammar is None and self.tool_calls and any(tool.strict for tool in self.tools):
            grammar = strict_calls(self.tool_calls, self.tools, several=self.several)
        if grammar is None:
            return sampling
        after: tuple[int, ...] = ()
        opening = -1
        if self.state != "over":
            after = tuple(tokenizer.encode(CLOSE, add_special_tokens=False))
        if self.state == "open":
            opening, after = _opening(tokenizer, after)
        return msgspec.structs.replace(sampling, grammar=grammar, grammar_after=after, grammar_opening=opening)


def _opening(tokenizer: Tokenizer, after: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """The token that opens a reasoning; where it takes several, the output begins with its grammar at once."""
    opening = tokenizer.encode(OPEN, add_special_tokens=False)
    return (opening[0], after) if len(opening) == 1 else (-1, ())


def chat_parsing(body: ChatBody, config: ServerConfig, prompt: str) -> ChatParsing:
    """Raises RequestError for tools that cannot be called."""
    tools = () if body.tool_choice == "none" else tuple(tool.spec() for tool in body.tools or ())
    forced = _forced(body, tools)
    if forced and config.tool_call_parser == "none":
        raise RequestError("tool_choice: forced calls need a server with --tool-call-parser", param="tool_choice")
    reasons = config.reasoning_parser != "none"
    return ChatParsing(
        reasoning=config.reasoning_parser if reasons and body.separate_reasoning is not False else "",
        # A grammar waits for the end of a reasoning even where the client wants that as text.
        state=reasoning_state(config.reasoning_parser, prompt) if reasons else "over",
        tool_calls=config.tool_call_parser if tools and config.tool_call_parser != "none" else "",
        tools=tools,
        forced=forced,
        named=isinstance(body.tool_choice, NamedTool),
        several=body.parallel_tool_calls is not False and not isinstance(body.tool_choice, NamedTool),
    )


def _forced(body: ChatBody, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    choice = body.tool_choice
    if choice == "required":
        if not tools:
            raise RequestError("tool_choice: required, but there are no tools", param="tool_choice")
        return tuple(tools)
    if not isinstance(choice, NamedTool):
        return ()
    named = tuple(tool for tool in tools if tool.name == choice.function.name)
    if not named:
        raise RequestError(f"tool_choice: no tool is called {choice.function.name!r}", param="tool_choice")
    return named
