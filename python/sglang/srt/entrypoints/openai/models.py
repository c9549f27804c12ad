"""/v1/models."""

from fastapi import APIRouter
from starlette.responses import Response

from sglang.srt.entrypoints.front import Front
from sglang.srt.entrypoints.openai.protocol import ModelCard, ModelList


def model_routes(front: Front) -> APIRouter:
    """The routes over `front`."""
    router = APIRouter()

    def card() -> ModelCard:
        length = front.ready.context_length if front.ready else None
        return ModelCard(
            id=front.config.served_model_name,
            created=front.created,
            root=front.config.model_path,
            max_model_len=length,
        )

    @router.get("/v1/models")
    async def models() -> Response:
        return Response(ModelList(data=[card()]).model_dump_json(), media_type="application/json")

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        front.check_model(name)
        return Response(card().model_dump_json(), media_type="application/json")

    return router
