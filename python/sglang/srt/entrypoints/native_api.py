"""SGLang's native routes: generation, health, information, cache, metrics."""

import uuid
from collections.abc import Awaitable
from typing import TypeVar

import msgspec
import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from sglang.srt.entrypoints.front import Front, Phase
from sglang.srt.entrypoints.http_tools import read_body, respond
from sglang.srt.entrypoints.native_generate import NativeReply, wanted_of
from sglang.srt.entrypoints.native_protocol import (
    AbortBody,
    DetokenizeBody,
    GenerateBody,
    PauseBody,
    ProfileBody,
    TokenizeBody,
)
from sglang.srt.entrypoints.openapi import DirectRoute, body_schema
from sglang.srt.entrypoints.scheduler_client import Unavailable
from sglang.srt.errors import EngineError, RequestError
from sglang.srt.messages.frontend import State

HEALTH_TOKEN_DEADLINE_S = 20.0
Answered = TypeVar("Answered")
STEP_DEADLINE_S = 60.0
"""Ten times the longest step measured here (a chunk of 512 tokens). The engine gives up only at --watchdog-timeout."""
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def native_routes(front: Front) -> APIRouter:
    """The routes over `front`."""
    router = APIRouter()
    _add_generation(busy := APIRouter(route_class=DirectRoute), front)
    router.include_router(busy)
    _add_health(router, front)
    _add_information(router, front)
    _add_operations(router, front)
    _add_control(router, front)
    _add_tokens(router, front)
    return router


def _add_generation(router: APIRouter, front: Front) -> None:
    @router.post("/generate", openapi_extra=body_schema(GenerateBody))
    async def generate(request: Request) -> Response:
        body = await read_body(request, GenerateBody)
        wanted = await wanted_of(body, front)
        rid = body.rid or uuid.uuid4().hex
        generation = front.generate(wanted, rid, stream=body.stream)
        reply = NativeReply(body, front, generation, rid)
        return await respond(request, generation, reply, stream=body.stream)


def _add_health(router: APIRouter, front: Front) -> None:
    @router.get("/health")
    @router.get("/ping")
    async def health() -> Response:
        """200 only while the scheduler's loop answers in time and its steps end, and not before the warm-up."""
        if front.phase is Phase.STARTING:
            raise Unavailable("the server is starting", retry_after_s=1.0)
        await _working(front)
        return Response()

    @router.get("/ready")
    async def ready() -> Response:
        """200 when requests are served: not while the model is loaded, nor while the server drains."""
        if front.phase is not Phase.READY:
            raise Unavailable(f"the server is {front.phase.value}", retry_after_s=1.0)
        await _working(front)
        return Response()

    @router.get("/health_generate")
    async def health_generate() -> Response:
        """200 when the engine generates a real token; a prefill engine generates none, so its loop has to do."""
        await _working(front)
        if front.config.disagg_mode != "prefill":
            try:
                await front.generate_one_token(HEALTH_TOKEN_DEADLINE_S)
            except EngineError as error:
                raise Unavailable(str(error)) from error
        return Response()


def _add_information(router: APIRouter, front: Front) -> None:
    @router.get("/model_info")
    @router.get("/get_model_info")
    async def model_info() -> Response:
        return _json(
            {
                "model_path": front.config.model_path,
                "tokenizer_path": front.config.tokenizer_path,
                "served_model_name": front.config.served_model_name,
                "is_generation": not front.config.is_embedding,
                "context_length": front.ready.context_length if front.ready else None,
                "vocab_size": front.tokenizer.vocab_size,
            }
        )

    @router.get("/server_info")
    @router.get("/get_server_info")
    async def server_info() -> Response:
        config = msgspec.to_builtins(front.config)
        config.pop("api_key")
        state = await _state(front)
        internal = {**state.gauges, **state.counters, **state.info, "samples": front.metrics.percentiles()}
        return _json(
            {
                **config,
                "status": front.phase.value,
                "max_total_num_tokens": front.ready.max_total_tokens if front.ready else None,
                "max_req_input_len": front.context - 1,
                "internal_states": [internal],
            }
        )

    @router.get("/v1/loads")
    async def loads() -> Response:
        state = await _state(front)
        keys = ("num_running_reqs", "num_queue_reqs", "num_used_tokens", "token_usage", "gen_throughput")
        load = {"dp_rank": 0, **{key: state.gauges[key] for key in keys if key in state.gauges}}
        return _json({"loads": [load], "dp_rank_count": 1})

    @router.get("/metrics")
    async def metrics() -> Response:
        if not front.config.enable_metrics:
            raise RequestError("metrics are off; start the server with --enable-metrics", status=404)
        # A scrape of a stuck engine still gets the front's own numbers and the last snapshot.
        if front.ready is not None and front.client.dead is None:
            try:
                await front.client.recent_state()
            except EngineError:
                front.metrics.scheduler_late()
        return Response(front.metrics.render(), media_type=METRICS_TYPE)


def _add_operations(router: APIRouter, front: Front) -> None:
    @router.post("/flush_cache")
    @router.get("/flush_cache", include_in_schema=False)
    async def flush_cache() -> Response:
        try:
            pages = await front.client.flush_cache()
        except EngineError as error:
            raise Unavailable(str(error)) from error
        return PlainTextResponse(f"Cache flushed: {pages} pages freed.\n")

    @router.post("/abort_request", openapi_extra=body_schema(AbortBody))
    async def abort_request(request: Request) -> Response:
        body = await read_body(request, AbortBody)
        if body.abort_all:
            front.client.abort_all()
        elif body.rid in front.calls:
            front.calls[body.rid].abort()
        return Response()


def _add_control(router: APIRouter, front: Front) -> None:
    @router.post("/pause_generation", openapi_extra=body_schema(PauseBody))
    async def pause_generation(request: Request) -> Response:
        body = await read_body(request, PauseBody, empty=b"{}")
        await _answered(front.client.pause(body.mode))
        return _json({"status": "paused", "mode": body.mode})

    @router.post("/continue_generation")
    async def continue_generation() -> Response:
        await _answered(front.client.resume())
        return _json({"status": "running"})

    @router.post("/start_profile", openapi_extra=body_schema(ProfileBody))
    async def start_profile(request: Request) -> Response:
        body = await read_body(request, ProfileBody, empty=b"{}")
        folder = await _answered(
            front.client.profile(start=True, folder=body.output_dir or front.config.profile_folder)
        )
        return PlainTextResponse(f"Profiling; the trace goes to {folder}.\n")

    @router.post("/stop_profile")
    async def stop_profile() -> Response:
        path = await _answered(front.client.profile(start=False))
        return PlainTextResponse(f"Profile written to {path}.\n")


async def _answered(call: Awaitable[Answered]) -> Answered:
    """What the scheduler answers; one that does not answer is unavailable."""
    try:
        return await call
    except EngineError as error:
        raise Unavailable(str(error)) from error


def _add_tokens(router: APIRouter, front: Front) -> None:
    @router.post("/tokenize", openapi_extra=body_schema(TokenizeBody))
    @router.post("/v1/tokenize", openapi_extra=body_schema(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        body = await read_body(request, TokenizeBody)
        given = body.prompt if body.prompt is not None else body.text
        if given is None:
            raise RequestError("prompt: required", param="prompt")
        texts = [given] if isinstance(given, str) else given
        add = body.add_special_tokens
        lists = [await front.tokenizer.encode_off_loop(text, add_special_tokens=add) for text in texts]
        counts = [len(ids) for ids in lists]
        one = isinstance(given, str)
        return _json(
            {
                "tokens": lists[0] if one else lists,
                "count": counts[0] if one else counts,
                "max_model_len": front.ready.context_length if front.ready else None,
            }
        )

    @router.post("/detokenize", openapi_extra=body_schema(DetokenizeBody))
    @router.post("/v1/detokenize", openapi_extra=body_schema(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        body = await read_body(request, DetokenizeBody)
        lists = [item for item in body.tokens if isinstance(item, list)]
        single = [item for item in body.tokens if isinstance(item, int)]
        texts = []
        for ids in lists or [single]:
            front.tokenizer.check_ids(ids, "tokens")
            texts.append(front.tokenizer.decode(ids, skip_special_tokens=body.skip_special_tokens))
        return _json({"text": texts if lists else texts[0]})


async def _state(front: Front) -> State:
    if front.ready is None:
        raise Unavailable("the model is still being loaded", retry_after_s=1.0)
    try:
        return await front.client.recent_state()
    except EngineError as error:
        raise Unavailable(str(error)) from error


async def _working(front: Front) -> None:
    """Raises Unavailable where the loop does not answer, or turns beside a compute thread that hangs."""
    age = (await _state(front)).gauges.get("step_age_seconds", 0.0)
    if age > STEP_DEADLINE_S:
        raise Unavailable(f"a step has been running for {age:.0f} s")


def _json(content: object) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")
