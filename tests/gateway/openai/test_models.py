from __future__ import annotations

import openai
import pytest

from llm_inference.engine.fake import FakeEngine
from tests.gateway.openai.schemas import PublicSchemas
from tests.gateway.serving import official, serving


async def test_list_and_single(public_schemas: PublicSchemas) -> None:
    async with serving(others={"org/name:v1": FakeEngine("org/name:v1")}) as service:
        listing = (await service.get("/v1/models")).json
        public_schemas.check(listing, "ListModelsResponse")
        assert [card["id"] for card in listing["data"]] == ["fake", "org/name:v1"]
        for spelling in ("org/name:v1", "org%2Fname%3Av1"):
            card = (await service.get(f"/v1/models/{spelling}")).json
            assert card == listing["data"][1]
            assert card["max_model_len"] == 4096
        missing = await service.get("/v1/models/org/other")
        assert (missing.status, missing.error["code"]) == (404, "model_not_found")


async def test_official_client() -> None:
    async with serving() as service, official(service) as client:
        assert [model.id async for model in client.models.list()] == ["fake"]
        assert (await client.models.retrieve("fake")).id == "fake"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("nobody")
