"""Describes request bodies in the OpenAPI document; bodies are read by hand, so FastAPI cannot know them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_TEMPLATE = "#/components/schemas/{model}"


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route whose JSON body is a `model`."""
    content = {"application/json": {"schema": {"$ref": _TEMPLATE.format(model=model.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


class DirectRoute(APIRoute):
    """A route whose endpoint takes the request alone: FastAPI documents it, and its dependency machinery, which costs
    more than the endpoint's own work, is not entered.
    """

    def __init__(self, path: str, endpoint: Callable[[Request], Awaitable[Response]], **options: Any) -> None:  # noqa: ANN401
        super().__init__(path, endpoint, **options)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            response = await endpoint(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = answer


def describe(app: FastAPI, models: Sequence[type[BaseModel]]) -> None:
    """Makes the document of `app` hold the schemas of `models`."""
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_TEMPLATE)
    plain = app.openapi

    def with_bodies() -> dict[str, Any]:
        document = plain()
        document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        return document

    app.openapi = with_bodies  # type: ignore[method-assign]
