"""Describes request bodies in the OpenAPI document; bodies are read by hand, so FastAPI cannot know them."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_TEMPLATE = "#/components/schemas/{model}"


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route whose JSON body is a `model`."""
    content = {"application/json": {"schema": {"$ref": _TEMPLATE.format(model=model.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def describe(app: FastAPI, models: Sequence[type[BaseModel]]) -> None:
    """Makes the document of `app` hold the schemas of `models`."""
    _, definitions = models_json_schema([(model, "validation") for model in models], ref_template=_TEMPLATE)
    plain = app.openapi

    def with_bodies() -> dict[str, Any]:
        document = plain()
        document.setdefault("components", {}).setdefault("schemas", {}).update(definitions["$defs"])
        return document

    app.openapi = with_bodies  # type: ignore[method-assign]
