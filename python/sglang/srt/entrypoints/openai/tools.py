"""Tools in chat requests, and calls in answers."""

import uuid
from typing import Any, Literal

from pydantic import BaseModel, Field

from sglang.srt.entrypoints.parsers.tools import ToolSpec
from sglang.srt.entrypoints.sampling_fields import Body

MAX_TOOLS = 1024
TOOL_NAME = r"^[A-Za-z0-9_.:/-]{1,128}$"


class FunctionSpec(Body):
    """A function that the model may call."""

    name: str = Field(pattern=TOOL_NAME)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Calls that the model makes unasked keep to the schema, too. Forced calls do so either way."""


class Tool(Body):
    """One of `tools`."""

    type: Literal["function"] = "function"
    function: FunctionSpec

    def spec(self) -> ToolSpec:
        """What parsers and grammars need of it."""
        empty: dict[str, Any] = {"type": "object", "properties": {}}
        return ToolSpec(
            name=self.function.name, parameters=self.function.parameters or empty, strict=bool(self.function.strict)
        )


def function_tool(name: str, description: str | None, parameters: dict[str, Any] | None, strict: bool | None) -> Tool:
    """A tool that says no more than it was given: templates print what is set."""
    given = {"description": description, "parameters": parameters, "strict": strict}
    function = FunctionSpec(name=name, **{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]
    return Tool(type="function", function=function)


class FunctionName(Body):
    """The function that must be called."""

    name: str


class NamedTool(Body):
    """`tool_choice` of one function."""

    type: Literal["function"] = "function"
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class FunctionCall(BaseModel):
    """What the model calls, and with what."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    """One of an answer's `tool_calls`."""

    id: str
    type: str = "function"
    function: FunctionCall


def call_id() -> str:
    """A fresh id for a call."""
    return f"call_{uuid.uuid4().hex[:24]}"
