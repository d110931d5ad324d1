from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from typing import Any

import jsonschema
import pytest
from prometheus_client import CollectorRegistry

from llm_inference.engine.base import Health
from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.errors import EngineError
from llm_inference.gateway.app import create_app
from llm_inference.gateway.settings import GatewaySettings
from tests.gateway.serving import MESSAGES, serving, until


async def test_every_error_has_the_same_body() -> None:
    async with serving(api_keys=()) as service:
        missing = await service.get("/nowhere")
        assert (missing.status, missing.error["code"]) == (404, "not_found")
        wrong = await service.get("/v1/chat/completions")
        assert (wrong.status, wrong.error["code"]) == (405, "method_not_allowed")
        assert wrong.headers["allow"] == "POST"
        assert "POST" in wrong.error["message"]
        for path in ("//v1/models", "/v1/models/", "/V1/models", "/v1//models"):
            assert (await service.get(path)).error["type"] == "invalid_request_error"


async def test_unforeseen_failure_is_logged_with_the_request_id(caplog: pytest.LogCaptureFixture) -> None:
    class Defective(FakeEngine):
        @property
        def info(self) -> Any:
            raise ZeroDivisionError("secret inside")

        @info.setter
        def info(self, value: Any) -> None:
            pass

    async with serving(others={"defective": Defective()}) as service:
        reply = await service.chat(model="defective")
        assert reply.status == 500
        assert reply.error["code"] == "server_error"
        assert "secret" not in reply.text
        assert any(reply.headers["x-request-id"] in record.getMessage() for record in caplog.records)


async def test_request_id_in_and_out() -> None:
    async with serving() as service:
        kept = await service.get("/v1/models", headers={"x-request-id": "abc-123_X.y:z"})
        assert kept.headers["x-request-id"] == "abc-123_X.y:z"
        for bad in ("a b", "x" * 129, 'a"b', ""):
            made = await service.get("/v1/models", headers={"x-request-id": bad})
            assert made.headers["x-request-id"].startswith("req_")
        ids = {(await service.get(path)).headers["x-request-id"] for path in ("/health", "/nowhere", "/v1/models")}
        assert len(ids) == 3
        # A client may repeat its id; the engine's own are unique all the same.
        for _ in range(2):
            assert (
                await service.request(
                    "POST", "/v1/chat/completions", json={"messages": MESSAGES}, headers={"x-request-id": "same"}
                )
            ).status == 200
        assert len({request.request_id for request in service.engine.requests}) == 2


async def test_cors_only_for_configured_origins() -> None:
    preflight = {"origin": "https://app.test", "access-control-request-method": "POST"}
    async with serving(cors_origins=("https://app.test",), api_keys=("key",)) as service:
        allowed = await service.request("OPTIONS", "/v1/chat/completions", headers=preflight)
        assert allowed.status == 200
        assert allowed.headers["access-control-allow-origin"] == "https://app.test"
        assert "x-request-id" in allowed.headers
        other = await service.request("OPTIONS", "/v1/models", headers={**preflight, "origin": "https://evil.test"})
        assert "access-control-allow-origin" not in other.headers
        refused = await service.get("/v1/models", headers={"origin": "https://app.test"})
        assert refused.status == 401
        assert refused.headers["access-control-allow-origin"] == "https://app.test"  # so that a page can read why
    async with serving(api_keys=("key",)) as service:
        assert (await service.request("OPTIONS", "/v1/models", headers=preflight)).status == 401


async def test_drain_refuses_new_requests_and_lets_the_old_end() -> None:
    async with serving(FakeScript(answers=["x" * 20], delay_s=0.01)) as service:
        running = asyncio.create_task(service.chat())
        await until(lambda: service.app.state.gateway.admission.in_flight)
        service.app.state.gateway.begin_drain()
        refused = await service.chat()
        assert (refused.status, refused.error["code"]) == (503, "shutting_down")
        assert int(refused.headers["retry-after"]) >= 1
        ready = await service.get("/ready")
        assert (ready.status, ready.json["status"]) == (503, "shutting_down")
        assert (await service.get("/health")).status == 200
        assert not await service.app.state.gateway.wait_idle(0.01)
        assert await service.app.state.gateway.wait_idle(5)
        assert (await running).status == 200


async def test_document_tells_the_truth() -> None:
    async with serving() as service:
        document = (await service.get("/openapi.json")).json
        routes = {
            (method.upper(), route.path)
            for route in service.app.routes
            for method in getattr(route, "methods", None) or ()
            if method != "HEAD" and route.path.startswith(("/v1", "/health", "/ready", "/metrics", "/version", "/tok"))
        }
        told = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
        assert {(method, path.replace(":path", "")) for method, path in routes} <= told

        def check(value: Any, name: str) -> None:
            schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
            jsonschema.Draft202012Validator(schema).validate(value)

        good = {"model": "fake", "messages": MESSAGES, "stop": ["a"], "logit_bias": {"1": -1}, "temperature": 0.5}
        check(good, "ChatCompletionRequest")
        check((await service.post("/v1/chat/completions", good)).json, "ChatCompletion")
        check((await service.post("/v1/chat/completions", {**good, "stream": True})).events[0], "ChatCompletionChunk")
        for wrong in ({**good, "n": 0}, {**good, "nonsense": 1}, {**good, "stop": [""]}, {"model": "fake"}):
            with pytest.raises(jsonschema.ValidationError):
                check(wrong, "ChatCompletionRequest")
            assert (await service.post("/v1/chat/completions", wrong)).status == 400
        check((await service.complete(prompt=[1, 2])).json, "Completion")
        check((await service.get("/v1/models")).json, "ModelList")
        check((await service.get("/health")).json, "HealthReport")
        check((await service.get("/nowhere")).json, "ErrorResponse")
        assert (await service.get("/docs")).status == 404  # no page here loads anything from elsewhere


@pytest.mark.parametrize("prefix", ["", "/api/v2"])
async def test_prefix(prefix: str) -> None:
    async with serving(api_prefix=prefix) as service:
        for path, body in (
            ("/chat/completions", {"messages": MESSAGES}),
            ("/completions", {"prompt": "x"}),
            ("/tokenize", {"prompt": "x"}),
        ):
            assert (await service.post(prefix + path, body)).status == 200
        assert (await service.get(prefix + "/models")).status == 200
        assert (await service.post("/tokenize", {"prompt": "x"})).status == 200
        assert (await service.get("/health")).status == 200


async def test_one_line_per_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "llm_inference.gateway.request")

    def lines() -> list[dict[str, Any]]:
        found = [record for record in caplog.records if record.name == "llm_inference.gateway.request"]
        fields = [dict(record.fields) for record in found]  # type: ignore[attr-defined]
        caplog.clear()
        return fields

    async with serving(FakeScript(answers=["abc"])) as service:
        for stream in (False, True):
            reply = await service.chat(stream=stream)
            (line,) = lines()
            assert line["request_id"] == reply.headers["x-request-id"]
            assert (line["model"], line["stream"], line["status"], line["error"]) == ("fake", stream, 200, None)
            assert (line["prompt_tokens"], line["completion_tokens"], line["cached_tokens"]) == (12, 3, 0)
            assert line["finish_reason"] == "stop"
            assert 0 <= line["ttft_s"] <= line["total_s"]
            assert line["queue_s"] == 0.0
            assert "prompt" not in line
        await service.chat(n=0)
        assert [(line["status"], line["error"]) for line in lines()] == [(400, "invalid_request_error")]
        for stream, fail_after in ((False, 0), (True, 0), (True, 1)):
            error = EngineError("the engine 'x' failed", detail="at http://10.0.0.5:8000")
            service.engine.script = FakeScript(answers=["abc"], fail_after=fail_after, error=error)
            reply = await service.chat(stream=stream)
            assert "the engine 'x' failed" in reply.text
            assert "10.0.0.5" not in reply.text
            assert [(line["error"], line["error_detail"]) for line in lines()] == [("server_error", error.detail)]
        await service.get("/health")
        assert lines() == []
        service.engine.health_now = Health(live=False, ready=False, reason="dead")
        await service.get("/health")
        assert [line["status"] for line in lines()] == [503]
        service.engine.script = FakeScript(answers=["abc"], hang_after=2)
        async with service.session.post(
            service.url + "/v1/chat/completions", json={"messages": MESSAGES, "stream": True}
        ) as response:
            await response.content.readuntil(b'"b"')
            response.close()
        await service.idle()
        (line,) = lines()
        assert (line["status"], line["error"], line["completion_tokens"]) == (200, "client_disconnected", 2)
    async with serving(log_prompts=True) as service:
        await service.chat()
        assert [line["prompt"] for line in lines()] == [MESSAGES]


async def test_prompts_are_redacted_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    from llm_inference.gateway.openai import intake

    threads: list[threading.Thread] = []
    redact = intake.redact

    def watched(prompt: object) -> object:
        threads.append(threading.current_thread())
        return redact(prompt)

    monkeypatch.setattr(intake, "redact", watched)
    async with serving(log_prompts=True) as service:
        assert (await service.complete(prompt="call +49 30 12345678 " * 50)).status == 200
        assert (await service.chat()).status == 200
    assert len(threads) == 2
    assert threading.main_thread() not in threads
    async with serving(log_prompts=True, redact_prompts=False) as service:
        await service.chat()
    assert len(threads) == 2


def test_gateway_imports_no_torch() -> None:
    code = (
        "import sys, llm_inference.gateway.app, llm_inference.engine.fake;"
        "print([name for name in ('torch', 'transformers', 'httpx') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("stream", [False, True])
async def test_who_is_cut_by_the_servers_end_is_told(stream: bool) -> None:
    """The time for running requests is over: a status or an error event, and a row like any other's."""
    engine = FakeEngine("fake", script=FakeScript(hang_after=2))
    app = create_app({"fake": engine}, GatewaySettings(), registry=CollectorRegistry())
    body = json.dumps({"model": "fake", "messages": MESSAGES, "stream": stream}).encode()
    scope = {
        "type": "http", "method": "POST", "path": "/v1/chat/completions", "raw_path": b"", "query_string": b"",
        "headers": [(b"content-type", b"application/json")], "http_version": "1.1", "scheme": "http",
    }  # fmt: skip
    sent: list[dict[str, Any]] = []
    received = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in received:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    task = asyncio.create_task(app(scope, receive, send))
    await until(lambda: engine.requests and (not stream or len(sent) > 1))
    await asyncio.sleep(0.05)
    task.cancel()
    await task
    assert sent[-1].get("more_body", False) is False
    payload = sent[-1]["body"]
    assert sent[0]["status"] == (200 if stream else 503)
    error = json.loads(payload.removeprefix(b"data: "))["error"]
    assert (error["type"], error["code"]) == ("service_unavailable", "shutting_down")
    assert engine.aborted
    assert app.state.gateway.admission.in_flight == 0
