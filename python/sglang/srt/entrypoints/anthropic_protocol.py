"""Bodies of /v1/messages, and the chat that asks for the same."""

from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from sglang.srt.entrypoints.openai.protocol import MAX_MESSAGES, ChatBody, ChatMessage, ContentPart
from sglang.srt.entrypoints.openai.tools import (
    MAX_TOOLS,
    TOOL_NAME,
    FunctionName,
    NamedTool,
    Tool,
    ToolChoice,
    function_tool,
)
from sglang.srt.entrypoints.sampling_fields import MAX_STOPS, Body
from sglang.srt.errors import RequestError


class Block(Body):
    """A piece of content: text, a call, what a call gave, or thinking."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | list[Block] | None" = None
    thinking: str | None = None


class Turn(Body):
    """One message."""

    role: str = Field(min_length=1, max_length=64)
    content: str | list[Block]


class MessagesTool(Body):
    """One of `tools`."""

    type: str = "custom"
    name: str = Field(pattern=TOOL_NAME)
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None

    def chat(self) -> Tool:
        """The same in chat's form. Raises RequestError for Anthropic's own tools."""
        if self.type != "custom":
            raise RequestError(f"tools: those of type {self.type!r} are not supported", param="tools")
        return function_tool(self.name, self.description, self.input_schema, self.strict)


class MessagesChoice(Body):
    """`tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False

    def chat(self) -> ToolChoice:
        """The same in chat's form. Raises RequestError for a named tool without a name."""
        match self.type:
            case "tool":
                if self.name is None:
                    raise RequestError("tool_choice.name: required", param="tool_choice")
                return NamedTool(function=FunctionName(name=self.name))
            case "any":
                return "required"
            case "auto" | "none":
                return self.type


class CountBody(Body):
    """/v1/messages/count_tokens."""

    model: str | None = None
    messages: Annotated[list[Turn], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[Block] | None = None
    tools: Annotated[list[MessagesTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: MessagesChoice | None = None

    def body(self) -> ChatBody:
        """The same conversation as a chat. Raises RequestError for what is not supported."""
        messages = [ChatMessage(role="system", content=_texts(self.system, "system"))] if self.system else []
        for turn in self.messages:
            messages += _messages(turn)
        return ChatBody(
            messages=messages,
            tools=[tool.chat() for tool in self.tools] if self.tools else None,
            tool_choice=self.tool_choice.chat() if self.tool_choice else None,
            parallel_tool_calls=not (self.tool_choice and self.tool_choice.disable_parallel_tool_use),
        )


class MessagesBody(CountBody):
    """/v1/messages."""

    max_tokens: int = Field(ge=1)
    stop_sequences: Annotated[list[str], Field(fail_fast=True, max_length=MAX_STOPS)] | None = None
    temperature: float | None = Field(default=None, ge=0, le=1000)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=1 << 31)
    stream: bool | None = None

    def body(self) -> ChatBody:
        asked = {
            "max_completion_tokens": self.max_tokens,
            "stop": self.stop_sequences,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
        }
        return super().body().model_copy(update=asked)


def _messages(turn: Turn) -> list[ChatMessage]:
    """A turn as messages: each result of a tool is one of its own, in front of what else the turn says."""
    if isinstance(turn.content, str):
        return [ChatMessage(role=turn.role, content=turn.content)]
    messages: list[ChatMessage] = []
    calls: list[dict[str, object]] = []
    said: list[Block] = []
    for block in turn.content:
        match block.type:
            case "tool_use":
                calls.append(_call(block))
            case "tool_result":
                text = _texts(block.content or "", "messages")
                messages.append(ChatMessage(role="tool", content=text, tool_call_id=block.tool_use_id))  # type: ignore[call-arg]
            case "thinking" | "redacted_thinking":
                pass  # templates leave earlier reasoning out
            case _:
                said.append(block)
    if calls:
        content = _texts(said, "messages") if said else None
        messages.append(ChatMessage(role=turn.role, content=content, tool_calls=calls))  # type: ignore[call-arg]
    elif said or not messages:
        messages.append(ChatMessage(role=turn.role, content=_texts(said, "messages")))
    return messages


def _call(block: Block) -> dict[str, object]:
    if block.name is None or block.input is None:
        raise RequestError("messages: a tool_use block has name and input", param="messages")
    function = {"name": block.name, "arguments": orjson.dumps(block.input).decode()}
    return {"id": block.id, "type": "function", "function": function}


def _texts(content: str | list[Block], param: str) -> str | list[ContentPart]:
    if isinstance(content, str):
        return content
    for block in content:
        if block.type != "text" or block.text is None:
            raise RequestError(f"{param}: content of type {block.type!r} is not supported", param=param)
    return [ContentPart(type="text", text=block.text) for block in content]
