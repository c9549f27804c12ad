"""Messages as chat templates know them, and as OpenAI answers them."""

import orjson

from sglang.srt.entrypoints.openai.protocol import AssistantMessage, ChatMessage
from sglang.srt.entrypoints.openai.tools import FunctionCall, ToolCall, call_id
from sglang.srt.entrypoints.parsers.base import CallArguments, CallStart, Event, Reasoning, Text
from sglang.srt.errors import RequestError


def template_message(message: ChatMessage, position: int) -> dict[str, object]:
    """Content as one text, OpenAI's newer role names as those that templates know, arguments of calls as objects."""
    shown = message.model_dump(exclude_unset=True)
    if isinstance(message.content, list):
        texts = []
        for part in message.content:
            if part.type != "text" or part.text is None:
                raise RequestError(
                    f"messages.{position}: content of type {part.type!r} is not supported", param="messages"
                )
            texts.append(part.text)
        shown["content"] = "\n".join(texts)
    elif message.content is None:
        shown["content"] = ""
    if message.role == "developer":
        shown["role"] = "system"
    if isinstance(shown.get("tool_calls"), list):
        shown["tool_calls"] = [_with_object(call) for call in shown["tool_calls"]]
    return shown


def _with_object(call: object) -> object:
    """Templates print arguments themselves, so they take an object; clients send the text they once received."""
    function = call.get("function") if isinstance(call, dict) else None
    if not (isinstance(call, dict) and isinstance(function, dict) and isinstance(function.get("arguments"), str)):
        return call
    try:
        arguments = orjson.loads(function["arguments"])
    except orjson.JSONDecodeError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def assistant_message(events: list[Event]) -> AssistantMessage:
    """An answer of these events. Content is null where there are calls and no text."""
    text, reasoning = "", ""
    calls: list[ToolCall] = []
    for event in events:
        match event:
            case Text(piece):
                text += piece
            case Reasoning(piece):
                reasoning += piece
            case CallStart(_, name):
                calls.append(ToolCall(id=call_id(), function=FunctionCall(name=name, arguments="")))
            case CallArguments(index, fragment):
                calls[index].function.arguments += fragment
    return AssistantMessage(
        content=text if text or not (calls or reasoning) else None,
        reasoning_content=reasoning or None,
        tool_calls=calls or None,
    )


def delta_json(event: Event) -> bytes:
    """An event as the `delta` of a stream."""
    match event:
        case Text(text):
            return b'{"content":' + orjson.dumps(text) + b"}"
        case Reasoning(text):
            return b'{"reasoning_content":' + orjson.dumps(text) + b"}"
        case CallStart(index, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": call_id(), "type": "function", "function": function}
        case CallArguments(index, fragment):
            call = {"index": index, "function": {"arguments": fragment}}
    return orjson.dumps({"tool_calls": [call]})
