"""SGLang's /parse_function_call and /separate_reasoning: the parsers over a whole text."""

from typing import Annotated

import orjson
from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from sglang.srt.entrypoints.http_tools import read_body
from sglang.srt.entrypoints.openai.tools import MAX_TOOLS, Tool
from sglang.srt.entrypoints.openapi import body_schema
from sglang.srt.entrypoints.parsers.base import CallArguments, CallStart, Event, Parser, Reasoning, Text
from sglang.srt.entrypoints.parsers.registry import reasoning_parser, tool_parser
from sglang.srt.entrypoints.sampling_fields import Body


class ParseFunctionCallBody(Body):
    """/parse_function_call."""

    text: str
    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=MAX_TOOLS)] = Field(default_factory=list)
    tool_call_parser: str


class SeparateReasoningBody(Body):
    """/separate_reasoning."""

    text: str
    reasoning_parser: str


def parsing_routes() -> APIRouter:
    """Both routes; they need no engine."""
    router = APIRouter()

    @router.post("/parse_function_call", openapi_extra=body_schema(ParseFunctionCallBody))
    async def parse_function_call(request: Request) -> Response:
        body = await read_body(request, ParseFunctionCallBody)
        events = _events(tool_parser(body.tool_call_parser, [tool.spec() for tool in body.tools]), body.text)
        normal = "".join(event.text for event in events if isinstance(event, Text))
        calls = [
            {"tool_index": event.index, "name": event.name, "parameters": _arguments(events, event.index)}
            for event in events
            if isinstance(event, CallStart)
        ]
        return _json({"normal_text": normal, "calls": calls})

    @router.post("/separate_reasoning", openapi_extra=body_schema(SeparateReasoningBody))
    async def separate_reasoning(request: Request) -> Response:
        body = await read_body(request, SeparateReasoningBody)
        inside = body.reasoning_parser == "deepseek-r1"
        events = _events(reasoning_parser(body.reasoning_parser, inside=inside), body.text)
        reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
        text = "".join(event.text for event in events if isinstance(event, Text))
        return _json({"reasoning_text": reasoning, "text": text})

    return router


def _events(parser: Parser, text: str) -> list[Event]:
    return parser.push(text) + parser.finish()


def _arguments(events: list[Event], index: int) -> str:
    return "".join(event.fragment for event in events if isinstance(event, CallArguments) and event.index == index)


def _json(content: object) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")
