"""/v1/embeddings and SGLang's /encode: hidden states, pooled as the model declares (config/pooling.py), of length 1."""

import base64
import math
import struct
import uuid
from collections.abc import Sequence
from typing import Annotated, Literal

import orjson
from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from sglang.srt.core.sampling import SamplingParams
from sglang.srt.entrypoints.front import Front
from sglang.srt.entrypoints.generation import Generation, Output, Wanted
from sglang.srt.entrypoints.http_tools import read_body
from sglang.srt.entrypoints.native_protocol import EncodeBody
from sglang.srt.entrypoints.openapi import DirectRoute, body_schema
from sglang.srt.entrypoints.sampling_fields import Body, TokenIds
from sglang.srt.errors import RequestError
from sglang.srt.managers.detokenizer import TextRules
from sglang.srt.managers.tokenizer import fit

MAX_BATCH = 1024


class EmbeddingBody(Body):
    """/v1/embeddings."""

    model: str | None = None
    input: (
        str
        | TokenIds
        | Annotated[list[str], Field(fail_fast=True, max_length=MAX_BATCH)]
        | Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_BATCH)]
    )
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1)
    """Keep so many, scaled to length 1 again; for models that were trained for it."""


def embedding_routes(front: Front) -> APIRouter:
    """The routes over `front`."""
    router = APIRouter(route_class=DirectRoute)

    @router.post("/v1/embeddings", openapi_extra=body_schema(EmbeddingBody))
    async def embeddings(request: Request) -> Response:
        body = await read_body(request, EmbeddingBody)
        front.check_model(body.model)
        outputs = await embed(front, await prompts_of(front, body.input, "input"), None)
        tokens = sum(output.prompt_tokens for output in outputs)
        data = [
            {"object": "embedding", "index": output.index, "embedding": _shown(body, output.embedding)}
            for output in outputs
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        answer = {"object": "list", "data": data, "model": front.config.served_model_name, "usage": usage}
        return Response(orjson.dumps(answer), media_type="application/json")

    @router.post("/encode", openapi_extra=body_schema(EncodeBody))
    async def encode(request: Request) -> Response:
        body = await read_body(request, EncodeBody)
        if (body.text is None) == (body.input_ids is None):
            raise RequestError("give either text or input_ids", param="text")
        given = body.input_ids if body.text is None else body.text
        assert given is not None
        prompts = await prompts_of(front, given, "input_ids" if body.text is None else "text")
        rid = body.rid or uuid.uuid4().hex
        answers = [
            {
                "embedding": output.embedding,
                "meta_info": {"id": rid, "prompt_tokens": output.prompt_tokens, "finish_reason": {"type": "stop"}},
            }
            for output in await embed(front, prompts, rid)
        ]
        single = isinstance(given, str) or bool(given and isinstance(given[0], int))
        return Response(orjson.dumps(answers[0] if single else answers), media_type="application/json")

    return router


async def prompts_of(
    front: Front, given: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]], param: str
) -> list[tuple[int, ...]]:
    """Checked token ids of each prompt. Raises RequestError that names `param`."""
    items = [given] if isinstance(given, str) else list(given)
    if not items:
        raise RequestError(f"{param}: the batch is empty", param=param)
    texts = [item for item in items if isinstance(item, str)]
    if texts:
        prompts = [await front.tokenizer.encode_off_loop(text) for text in texts]
    else:
        numbers = [item for item in items if isinstance(item, int)]
        prompts = [numbers] if numbers else [list(item) for item in items if isinstance(item, list)]
    for ids in prompts:
        front.tokenizer.check_ids(ids, param)
        fit(len(ids), 1, front.context, param=param, asked_param=param)
    return [tuple(ids) for ids in prompts]


async def embed(front: Front, prompts: Sequence[tuple[int, ...]], rid: str | None) -> list[Output]:
    """The outputs, which hold an embedding each. Raises RequestError where this engine makes none."""
    front.check_embedding(wanted=True)
    sampling = SamplingParams(max_new_tokens=1, temperature=0.0)
    wanted = [Wanted(ids, sampling, TextRules(), silent=True) for ids in prompts]
    generation: Generation = front.generate(wanted, rid, embedding=True)
    try:
        await generation.collect()
    finally:
        generation.close()
    return generation.outputs


def _shown(body: EmbeddingBody, vector: Sequence[float]) -> Sequence[float] | str:
    if body.dimensions is not None:
        if body.dimensions > len(vector):
            raise RequestError(f"dimensions: this model has {len(vector)}", param="dimensions")
        vector = vector[: body.dimensions]
        length = math.sqrt(math.fsum(value * value for value in vector)) or 1.0
        vector = [value / length for value in vector]
    if body.encoding_format == "float":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
