"""The HTTP application: routes, errors, middleware."""

import logging

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from sglang.srt.entrypoints.anthropic_messages import message_routes
from sglang.srt.entrypoints.anthropic_protocol import CountBody, MessagesBody
from sglang.srt.entrypoints.front import Front
from sglang.srt.entrypoints.middleware import ApiKey, BodyLimit, BrowserCors, TraceParent
from sglang.srt.entrypoints.native_api import native_routes
from sglang.srt.entrypoints.native_parsing import ParseFunctionCallBody, SeparateReasoningBody, parsing_routes
from sglang.srt.entrypoints.native_protocol import (
    AbortBody,
    DetokenizeBody,
    EncodeBody,
    GenerateBody,
    PauseBody,
    ProfileBody,
    TokenizeBody,
)
from sglang.srt.entrypoints.openai.chat import chat_routes
from sglang.srt.entrypoints.openai.completions import completion_routes
from sglang.srt.entrypoints.openai.embeddings import EmbeddingBody, embedding_routes
from sglang.srt.entrypoints.openai.errors import response_of
from sglang.srt.entrypoints.openai.models import model_routes
from sglang.srt.entrypoints.openai.protocol import ChatBody, CompletionBody
from sglang.srt.entrypoints.openai.responses import responses_routes
from sglang.srt.entrypoints.openai.responses_protocol import ResponsesBody
from sglang.srt.entrypoints.openapi import describe
from sglang.srt.entrypoints.scheduler_client import ClientGone
from sglang.srt.errors import RequestError, SglangError

_log = logging.getLogger("sglang.http")

BODIES = (
    GenerateBody,
    AbortBody,
    EncodeBody,
    PauseBody,
    ProfileBody,
    TokenizeBody,
    DetokenizeBody,
    CompletionBody,
    ChatBody,
    ResponsesBody,
    MessagesBody,
    CountBody,
    EmbeddingBody,
    ParseFunctionCallBody,
    SeparateReasoningBody,
)


def create_app(front: Front) -> FastAPI:
    """The application over `front`."""
    app = FastAPI(title="sglang", docs_url=None, redoc_url=None)
    # Busiest first: routes are tried in order.
    for routes in (
        chat_routes,
        completion_routes,
        native_routes,
        responses_routes,
        message_routes,
        embedding_routes,
        model_routes,
    ):
        app.include_router(routes(front))
    app.include_router(parsing_routes())
    describe(app, BODIES)
    app.add_exception_handler(SglangError, _known)
    app.add_exception_handler(HTTPException, _routing)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _unknown)
    app.add_middleware(BodyLimit)
    if front.spans is not None:
        app.add_middleware(TraceParent, variable=front.traceparent)
    if front.config.api_key:
        app.add_middleware(ApiKey, key=front.config.api_key)
    # Outermost, so that browsers can read refusals too.
    app.add_middleware(BrowserCors)
    return app


async def _known(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestError):
        return response_of(error)
    _log.error("%s %s: %s", request.method, request.url.path, error)
    return response_of(RequestError(str(error), status=500, kind="server_error"))


async def _routing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    wrapped = RequestError(f"{request.method} {request.url.path}: {error.detail}", status=error.status_code)
    response = response_of(wrapped)
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


async def _gone(request: Request, error: Exception) -> Response:
    return response_of(ClientGone())


async def _unknown(request: Request, error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return response_of(RequestError("internal error; see the server's log", status=500, kind="server_error"))
