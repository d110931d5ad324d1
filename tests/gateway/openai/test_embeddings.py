from __future__ import annotations

import asyncio
import base64
import struct
from typing import Any

import msgspec
import openai
import pytest

from llm_inference.engine.fake import FAKE_CAPABILITIES, FakeEngine, FakeScript
from llm_inference.engine.fake_vectors import SIZE
from llm_inference.errors import EngineError, InvalidRequestError
from tests.gateway.openai.schemas import PublicSchemas
from tests.gateway.serving import Reply, Service, official, serving, until

PATH = "/v1/embeddings"


async def embed(service: Service, **fields: Any) -> Reply:
    return await service.post(PATH, {"model": "fake", "input": "hello", **fields})


def numbers(text: str) -> list[float]:
    raw = base64.b64decode(text)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


async def test_one_vector_for_each_input_in_order(public_schemas: PublicSchemas) -> None:
    async with serving() as service:
        reply = await embed(service, input=["hello", "world", "hello"])
        assert reply.status == 200
        public_schemas.check(reply.json, "CreateEmbeddingResponse")
        body = reply.json
        assert [item["index"] for item in body["data"]] == [0, 1, 2]
        first, second, third = (item["embedding"] for item in body["data"])
        assert first == third != second
        assert len(first) == SIZE
        assert sum(value * value for value in first) == pytest.approx(1.0)
        assert (body["object"], body["model"]) == ("list", "fake")
        assert body["usage"] == {"prompt_tokens": 18, "total_tokens": 18}  # five bytes and a BOS each
        alone = (await embed(service)).json["data"][0]["embedding"]
        assert alone == first


@pytest.mark.parametrize("given", [[104, 105], [[104, 105], [106]], ["hi", "j"]])
async def test_all_forms_of_input(given: Any) -> None:
    async with serving() as service:
        plain = (await embed(service, input=given, add_special_tokens=False)).json["data"]
        expected = (await embed(service, input=["hi", "j"], add_special_tokens=False)).json["data"]
        assert plain == expected[: len(plain)]


async def test_base64_is_the_same_numbers() -> None:
    async with serving() as service:
        floats = (await embed(service, encoding_format="float")).json["data"][0]["embedding"]
        packed = (await embed(service, encoding_format="base64")).json["data"][0]["embedding"]
        assert numbers(packed) == floats


async def test_a_large_answer_is_written_beside_the_loop() -> None:
    async with serving() as service:
        texts = [str(number) for number in range(2048)]
        reply = await embed(service, input=texts)
        assert reply.status == 200
        assert len(reply.json["data"]) == 2048
        packed = await embed(service, input=texts, encoding_format="base64")
        assert [numbers(item["embedding"]) for item in packed.json["data"][:3]] == [
            item["embedding"] for item in reply.json["data"][:3]
        ]


async def test_openais_own_client_which_asks_for_base64() -> None:
    async with serving() as service, official(service) as client:
        answer = await client.embeddings.create(model="fake", input=["hello", "world"], dimensions=4, user="me")
        assert [len(item.embedding) for item in answer.data] == [4, 4]
        assert answer.usage.prompt_tokens == 12
        assert service.engine.embed_requests[0].dimensions == 4
        same = await client.embeddings.create(model="fake", input="hello", dimensions=4, encoding_format="float")
        assert same.data[0].embedding == pytest.approx(answer.data[0].embedding)
        with pytest.raises(openai.BadRequestError, match="input: is empty"):
            await client.embeddings.create(model="fake", input="")


async def test_what_is_asked_reaches_the_engine() -> None:
    async with serving() as service:
        await embed(service, pooling="cls", normalize=False, dimensions=3, priority=5, cache_salt="s")
        request = service.engine.embed_requests[0]
        asked = (request.pooling, request.normalize, request.dimensions, request.priority, request.cache_salt)
        assert asked == ("cls", False, 3, 5, "s")
        await embed(service)
        request = service.engine.embed_requests[1]
        assert (request.pooling, request.normalize, request.dimensions) == (None, None, None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": None}, "input"),
        ({"input": [1, "a"]}, "input"),
        ({"input": [1.0]}, "input"),
        ({"input": [True]}, "input"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": [258]}, "input"),
        ({"input": [[1], [258]]}, "input[1]"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": True}, "dimensions"),
        ({"dimensions": "4"}, "dimensions"),
        ({"dimensions": 1000}, "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"pooling": "max"}, "pooling"),
        ({"normalize": 1}, "normalize"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"prompt": "a"}, "prompt"),
        ({"stream": True}, "stream"),
        ({"temperature": 0.5}, "temperature"),
    ],
)
async def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    async with serving() as service:
        reply = await embed(service, **fields)
        assert (reply.status, reply.error["param"]) == (400, param)
        assert reply.error["message"]


async def test_what_is_too_long_is_refused_by_number() -> None:
    async with serving(engine=FakeEngine("fake", max_model_len=8)) as service:
        for given in (["ok", "x" * 9], [[1], [2] * 9]):
            reply = await embed(service, input=given)
            assert (reply.status, reply.error["param"], reply.error["code"]) == (
                400,
                "input[1]",
                "context_length_exceeded",
            )


async def test_a_model_without_vectors_and_a_model_without_text() -> None:
    capabilities = msgspec.structs.replace(FAKE_CAPABILITIES, embeddings=False)
    async with serving(engine=FakeEngine("fake", capabilities=capabilities)) as service:
        reply = await embed(service)
        assert (reply.status, reply.error["param"], reply.error["code"]) == (400, "model", "unsupported_operation")
        assert "'fake' of model 'fake'" in reply.error["message"]
    capabilities = msgspec.structs.replace(FAKE_CAPABILITIES, generate=False)
    async with serving(engine=FakeEngine("fake", capabilities=capabilities)) as service:
        assert (await embed(service)).status == 200
        for path, body in (
            ("chat/completions", {"messages": [{"role": "user", "content": "hi"}], "seed": 1}),
            ("completions", {"prompt": "hi"}),
            ("batch_completions", {"prompts": ["hi"]}),
        ):
            reply = await service.post(f"/v1/{path}", body)
            assert (reply.status, reply.error["param"], reply.error["code"]) == (400, "model", "unsupported_operation")
            assert "encoder" in reply.error["message"]


async def test_a_field_that_the_engine_refuses() -> None:
    capabilities = msgspec.structs.replace(FAKE_CAPABILITIES, fields={}, reasons={"cache_salt": "there is no cache"})
    async with serving(engine=FakeEngine("fake", capabilities=capabilities)) as service:
        reply = await embed(service, cache_salt="s")
        assert (reply.status, reply.error["param"]) == (400, "cache_salt")
        assert "there is no cache" in reply.error["message"]
        assert (await embed(service, priority=0)).status == 200


@pytest.mark.parametrize(
    ("error", "status"), [(EngineError("died"), 500), (InvalidRequestError("bad", param="input"), 400)]
)
async def test_failures_are_plain_errors(error: Exception, status: int) -> None:
    async with serving(FakeScript(fail_after=0, error=error)) as service:
        reply = await embed(service)
        assert reply.status == status
        assert reply.error["message"]
        await service.idle()


async def test_a_client_that_leaves_aborts_the_work() -> None:
    async with serving(FakeScript(hang_after=0)) as service:
        task = asyncio.create_task(embed(service))
        await until(lambda: service.engine.embed_requests)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: service.engine.aborted)
        await service.idle()
        assert 'status="499"' in await service.metrics()


async def test_the_time_limit_holds() -> None:
    async with serving(FakeScript(hang_after=0), request_timeout_s=0.1) as service:
        assert (await embed(service)).status == 504
        assert len(service.engine.aborted) == 1


async def test_keys_prefix_metrics_and_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="llm_inference.gateway.request")
    async with serving(api_keys=("secret",), api_prefix="/api", log_prompts=True) as service:
        assert (await service.post("/api/embeddings", {"input": "hello"})).status == 401
        headers = {"authorization": "Bearer secret"}
        assert (await service.post("/api/embeddings", {"input": "hello"}, headers=headers)).status == 200
        lines = [record.fields for record in caplog.records if hasattr(record, "fields")]
        assert lines[-1]["path"] == "/api/embeddings"
        assert (lines[-1]["prompt_tokens"], lines[-1]["model"], lines[-1]["prompt"]) == (6, "fake", ["hello"])
        text = await service.metrics()
        assert 'route="/api/embeddings"' in text
        assert "/api/embeddings" in (await service.get("/openapi.json", headers=headers)).json["paths"]
