"""Every error that leaves the server has OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

import math

import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.responses import Response

from sglang.srt.entrypoints.scheduler_client import Unavailable
from sglang.srt.errors import RequestError
from sglang.srt.managers.tokenizer import ContextLengthError

_CODES = {401: "invalid_api_key", 404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


def error_body(
    message: str, *, kind: str = "invalid_request_error", param: str | None = None, code: str | None = None
) -> bytes:
    """The JSON of an error."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def body_of(error: RequestError) -> bytes:
    """The JSON of a request's error."""
    code = _CODES.get(error.status)
    if isinstance(error, ContextLengthError):
        code = "context_length_exceeded"
    elif error.status == 404 and error.param == "model":
        code = "model_not_found"
    return error_body(str(error), kind=error.kind, param=error.param, code=code)


def response_of(error: RequestError) -> Response:
    """The HTTP response of a request's error."""
    headers = {}
    if isinstance(error, Unavailable) and error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    return Response(body_of(error), error.status, headers, media_type="application/json")


def from_validation(error: ValidationError) -> RequestError:
    """Pydantic's findings -> one 400 that names the first offending field."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    first = found[0]
    if first["type"] == "json_invalid":
        return RequestError(f"the body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}")
    if not first["loc"]:
        return RequestError(f"the body must be a JSON object: {first['msg']}")
    field = str(first["loc"][0])
    same = [item for item in found if item["loc"][0] == first["loc"][0]]
    if len(same) > 1 and all(isinstance(item["loc"][1], str) for item in same if len(item["loc"]) > 1):
        return _from_union(field, same)
    return RequestError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", param=field)


def _from_union(field: str, findings: list[ErrorDetails]) -> RequestError:
    """Pydantic reports each alternative that it tried; only one that fits in its outermost type says what is wrong."""
    inner = [item for item in findings if len(item["loc"]) > 2 or not item["type"].endswith("_type")]
    if len({item["loc"][1] for item in inner}) == 1:
        path = [field, *map(str, inner[0]["loc"][2:])]
        return RequestError(f"{'.'.join(path)}: {inner[0]['msg']}", param=field)
    accepted = ", ".join(sorted({str(item["loc"][1]) for item in findings if len(item["loc"]) > 1}))
    return RequestError(f"{field}: wrong type; accepted: {accepted}", param=field)
