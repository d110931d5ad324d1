"""The table below the framework answers like the framework itself, and the API document knows every route of it."""

from __future__ import annotations

import pytest

from llm_inference.errors import OverloadedError
from llm_inference.gateway.dispatch import GatewayApp
from tests.gateway.serving import MESSAGES, serving


async def test_known_paths_go_past_the_framework_and_others_through_it() -> None:
    async with serving() as service:
        assert (await service.chat()).status == 200
        assert (await service.get("/v1/models")).json["data"][0]["id"] == "fake"
        assert (await service.get("/v1/models/fake")).json["id"] == "fake"  # a placeholder
        assert (await service.request("HEAD", "/health")).status == 200
        wrong_method = await service.get("/v1/chat/completions")
        assert wrong_method.status == 405
        assert wrong_method.headers["allow"] == "POST"
        assert (await service.get("/v1/nothing")).status == 404
        for path in ("/v1/chat/completions/", "//v1/chat/completions", "/V1/chat/completions"):
            assert (await service.post(path, {"messages": MESSAGES})).status == 404, path


async def test_errors_of_the_table_are_the_errors_of_the_api() -> None:
    async with serving() as service:
        refused = await service.post("/v1/chat/completions", {"messages": [], "model": "fake"})
        assert refused.status == 400
        assert refused.error["param"] == "messages"


async def test_the_table_holds_every_documented_route_without_placeholders() -> None:
    async with serving() as service:
        assert isinstance(service.app, GatewayApp)
        documented = {
            (method.upper(), path)
            for path, methods in service.app.openapi()["paths"].items()
            for method in methods
            if "{" not in path
        }
        assert documented == set(service.app._endpoints)


async def test_an_error_after_the_response_has_begun_is_not_answered_twice() -> None:
    from llm_inference.gateway.dispatch import Dispatch
    from llm_inference.gateway.record import RequestRecord, attach

    record = RequestRecord(request_id="r", metrics=None)  # type: ignore[arg-type]

    async def endpoint(request: object) -> object:
        async def response(scope: object, receive: object, send: object) -> None:
            record.status = 200
            raise OverloadedError("too late")

        return response

    scope = {"type": "http", "method": "GET", "path": "/x"}
    attach(scope, record)
    sent: list[object] = []

    async def send(message: object) -> None:
        sent.append(message)

    dispatch = Dispatch(None, {("GET", "/x"): endpoint})  # type: ignore[arg-type, dict-item]
    with pytest.raises(OverloadedError):
        await dispatch(scope, None, send)  # type: ignore[arg-type]
    assert sent == []
