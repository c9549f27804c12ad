"""Bodies of /v1/responses, and the chat that asks for the same."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from sglang.srt.entrypoints.grammar_fields import JsonSchema, ResponseFormat
from sglang.srt.entrypoints.openai.errors import from_validation
from sglang.srt.entrypoints.openai.protocol import MAX_MESSAGES, ChatBody, ChatMessage, ContentPart
from sglang.srt.entrypoints.openai.tools import (
    MAX_TOOLS,
    TOOL_NAME,
    FunctionName,
    FunctionSpec,
    NamedTool,
    Tool,
    function_tool,
)
from sglang.srt.entrypoints.sampling_fields import Body, refuse
from sglang.srt.errors import RequestError

_TEXT_PARTS = ("input_text", "output_text", "text")


class InputPart(Body):
    """A piece of an input message."""

    type: str
    text: str | None = None


class InputItem(Body):
    """One item of the conversation so far: a message, a call, what a call gave, or a reasoning."""

    type: str = "message"
    role: str = Field(default="user", min_length=1, max_length=64)
    content: str | list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None


class TextFormat(Body):
    """`text.format`: text, any JSON object, or a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class TextOptions(Body):
    """`text`."""

    format: TextFormat | None = None


class ResponsesTool(FunctionSpec):
    """One of `tools`: a function, without chat's wrapper around it."""

    name: str = Field(default="", pattern=TOOL_NAME)
    """OpenAI's own tools have none."""
    type: str

    def chat(self) -> Tool:
        """The same in chat's form. Raises RequestError for OpenAI's own tools, and for a function without a name."""
        if self.type != "function":
            raise RequestError(f"tools: those of type {self.type!r} are not supported", param="tools")
        if not self.name:
            raise RequestError("tools: a function has a name", param="tools")
        return function_tool(self.name, self.description, self.parameters, self.strict)


class ResponsesChoice(Body):
    """`tool_choice` of one function."""

    type: Literal["function"]
    name: str


class ResponsesBody(Body):
    """/v1/responses."""

    model: str | None = None
    input: str | Annotated[list[InputItem], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=1000)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stream: bool | None = None
    metadata: dict[str, str] | None = None
    text: TextOptions | None = None
    tools: Annotated[list[ResponsesTool], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesChoice | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: Any = None
    conversation: Any = None
    background: bool | None = None

    def check(self) -> None:
        """Raises RequestError for what is not supported."""
        refuse(
            (
                ("previous_response_id", self.previous_response_id, ()),
                ("conversation", self.conversation, ()),
                ("background", self.background, (False,)),
            )
        )

    def chat(self) -> ChatBody:
        """The same request as a chat. Raises RequestError for what is not supported."""
        messages = [ChatMessage(role="system", content=self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            messages.append(ChatMessage(role="user", content=self.input))
        else:
            messages += _messages(self.input)
        choice = self.tool_choice
        return ChatBody(
            messages=messages,
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            tools=[tool.chat() for tool in self.tools] if self.tools else None,
            tool_choice=NamedTool(function=FunctionName(name=choice.name))
            if isinstance(choice, ResponsesChoice)
            else choice,
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=_format(self.text.format) if self.text and self.text.format else None,
        )


def _format(asked: TextFormat) -> ResponseFormat:
    if asked.type != "json_schema":
        return ResponseFormat(type=asked.type)
    if asked.schema_ is None:
        raise RequestError("text.format.schema: required", param="text.format")
    try:
        return ResponseFormat(type=asked.type, json_schema=JsonSchema(name=asked.name, schema=asked.schema_))
    except ValidationError as error:
        raise from_validation(error) from error


def _messages(items: list[InputItem]) -> list[ChatMessage]:
    """Items as messages: calls that follow each other are one message of the assistant, and a reasoning is none."""
    messages: list[ChatMessage] = []
    calls: list[dict[str, object]] = []
    for position, item in enumerate(items):
        if item.type == "function_call":
            if not calls:
                messages.append(ChatMessage(role="assistant", content=None, tool_calls=calls))  # type: ignore[call-arg]
            calls.append(_call(item, position))
            continue
        calls = []
        match item.type:
            case "message":
                messages.append(ChatMessage(role=item.role, content=_content(item.content, position, "content")))
            case "function_call_output":
                text = _content(item.output, position, "output")
                messages.append(ChatMessage(role="tool", content=text, tool_call_id=item.call_id))  # type: ignore[call-arg]
            case "reasoning":
                pass
            case _:
                raise RequestError(f"input.{position}: items of type {item.type!r} are not supported", param="input")
    if not messages:
        raise RequestError("input: holds no message", param="input")
    return messages


def _call(item: InputItem, position: int) -> dict[str, object]:
    if item.name is None or item.arguments is None:
        raise RequestError(f"input.{position}: a function_call has name and arguments", param="input")
    function = {"name": item.name, "arguments": item.arguments}
    return {"id": item.call_id, "type": "function", "function": function}


def _content(content: str | list[InputPart] | None, position: int, field: str) -> str | list[ContentPart]:
    if content is None:
        raise RequestError(f"input.{position}.{field}: required", param="input")
    if isinstance(content, str):
        return content
    for part in content:
        if part.type not in _TEXT_PARTS or part.text is None:
            raise RequestError(f"input.{position}: content of type {part.type!r} is not supported", param="input")
    return [ContentPart(type="text", text=part.text) for part in content]
