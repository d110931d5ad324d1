"""`GET /models` and `GET /models/{id}`: what is served here, to the key that asks."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from llm_inference.engine.types import ModelInfo
from llm_inference.gateway.openai.replies import ModelCard, ModelList, encoder
from llm_inference.gateway.record import record_of
from llm_inference.gateway.routing.wish import Wish
from llm_inference.gateway.state import gateway_of
from llm_inference.gateway.tenants import access


async def list_models(request: Request) -> Response:
    router = gateway_of(request).router
    names = access.visible(router, record_of(request.scope).key)
    targets = (target for target in router.table.targets() if target.group.name in names)
    cards = [_card(target.listed, router.route(target, Wish()).info) for target in targets]
    return Response(encoder.encode(ModelList(cards)), media_type="application/json")


async def get_model(request: Request) -> Response:
    """The id is the rest of the path, slashes included. Raises `ModelNotFoundError`."""
    key = record_of(request.scope).key
    router = gateway_of(request).router
    target = access.find(router, request.path_params["model_id"], key)
    card = _card(target.listed, router.route(target, Wish()).info)
    return Response(encoder.encode(card), media_type="application/json")


def _card(name: str, info: ModelInfo) -> ModelCard:
    return ModelCard(name, info.created, info.engine or "llm-inference", info.max_model_len)
