from __future__ import annotations

import asyncio
import json
import socket
from contextlib import aclosing
from typing import Any

import pytest

from llm_inference.adapters.dialect import Call, ServerFacts
from llm_inference.adapters.generate_api import GenerateAPIEngine
from llm_inference.adapters.generate_http import HttpBackend
from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.adapters.lightllm import LightLLMDialect
from llm_inference.adapters.tgi_generate import TGIDialect
from llm_inference.adapters.triton import TritonDialect
from llm_inference.engine.base import Engine, ReportsStats, Tokenizes
from llm_inference.engine.types import Delta, GenerationDefaults, ModelInfo
from llm_inference.errors import ConfigError, EngineError, InvalidRequestError, NotReadyError
from tests.adapters.generate_model import make_engine
from tests.adapters.replay import (
    CutBackend,
    ReplayServer,
    Reply,
    drain,
    event_stream,
    json_reply,
    outcome,
    replaying,
    request,
    run,
    usage_of,
)

STREAM = "/generate_stream"


def frames(*texts: str, finished: bool = True) -> bytes:
    """LightLLM's events."""
    last = len(texts) - 1
    return b"".join(
        b"data:"
        + json.dumps(
            {
                "token": {
                    "id": place,
                    "text": text,
                    "logprob": -1.0,
                    "count_output_tokens": place + 1,
                    "prompt_tokens": 4,
                },
                "finished": finished and place == last,
                "finish_reason": "stop" if finished and place == last else None,
            }
        ).encode()
        + b"\n\n"
        for place, text in enumerate(texts)
    )


def engine_at(server: ReplayServer, prompts: PromptSide, **more: Any) -> GenerateAPIEngine:
    return make_engine(LightLLMDialect(), HttpBackend("lightllm", server.url), prompts, **more)


async def test_it_is_an_engine_with_its_optional_powers(prompts: PromptSide) -> None:
    engine: Engine = make_engine(LightLLMDialect(), CutBackend([b""]), prompts)
    assert isinstance(engine, Tokenizes)
    assert isinstance(engine, ReportsStats)
    assert engine.capabilities.tokenize
    assert (engine.info.name, engine.info.engine) == ("m", "lightllm")
    result = await engine.tokenize("Hi")
    assert (result.token_ids[0], result.tokens[1:], result.max_model_len) == (0, ("H", "i"), 1000)
    assert await engine.detokenize(result.token_ids) == "<s>Hi"
    with pytest.raises(InvalidRequestError, match="9999"):
        await engine.detokenize((9999,))
    assert (await engine.tokenize("", add_special_tokens=False)).token_ids == ()


async def test_from_start_to_stop(prompts: PromptSide) -> None:
    async with replaying({"/health": json_reply({"message": "Ok"}), STREAM: event_stream(frames("a", "b"))}) as server:
        engine = engine_at(server, prompts)
        await engine.start()
        assert (await engine.health()).ready
        deltas = await run(engine, request())
        assert (outcome(deltas).text, usage_of(deltas).completion_tokens) == ("ab", 2)
        assert deltas[-1].timing is not None
        assert [delta.timing for delta in deltas[:-1]] == [None]
        assert engine.stats().num_running == 0
        await engine.stop(0)
        with pytest.raises(NotReadyError, match="already stopped"):
            await run(engine, request())


async def test_start_waits_while_the_server_loads(prompts: PromptSide) -> None:
    async with replaying({"/health": [json_reply({}, 503), json_reply({}, 503), json_reply({})]}) as server:
        engine = engine_at(server, prompts, poll_s=0.0)
        await engine.start()
        assert len(server.received) == 3
        await engine.stop(0)


async def test_start_waits_no_longer_than_it_must(prompts: PromptSide) -> None:
    async with replaying({"/health": json_reply({}, 503)}) as server:
        engine = engine_at(server, prompts, poll_s=0.0, ready_timeout_s=0.0)
        with pytest.raises(ConfigError, match="did not become ready: /health answers with status 503"):
            await engine.start()
        health = await engine.health()
        assert (health.live, health.ready, health.reason) == (True, False, "/health answers with status 503")
        await engine.stop(0)


async def test_nobody_at_the_url(prompts: PromptSide) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        engine = make_engine(LightLLMDialect(), HttpBackend("lightllm", url), prompts)
        with pytest.raises(ConfigError, match=f"url: .*{url}"):
            await engine.start()
        assert (await engine.health()).reason == "the engine 'lightllm' does not answer"
        with pytest.raises(NotReadyError):
            await run(engine, request())
        await engine.stop(0)


@pytest.mark.parametrize(
    ("configured", "said", "limit"),
    [(0, 500, 500), (400, 500, 400), (600, 500, None), (0, None, None), (400, None, 400)],
)
async def test_the_servers_own_limit(prompts: PromptSide, configured: int, said: int | None, limit: int | None) -> None:
    replies = {"/health": json_reply({}), "/info": json_reply({"max_total_tokens": said})}
    async with replaying(replies) as server:
        info = ModelInfo(name="m", max_model_len=configured, engine="tgi-generate")
        backend = HttpBackend("tgi-generate", server.url)
        engine = GenerateAPIEngine(
            TGIDialect(), backend, info, model="m", prompts=prompts, limit_is_configured=bool(configured)
        )
        if limit is None:
            with pytest.raises(ConfigError, match="max_model_len"):
                await engine.start()
        else:
            await engine.start()
            assert engine.info.max_model_len == limit
        await engine.stop(0)


async def test_closing_the_answer_aborts_the_engines_work(prompts: PromptSide) -> None:
    async with replaying(
        {"/health": json_reply({}), STREAM: event_stream(frames("a", "b", finished=False), end="open")}
    ) as server:
        engine = engine_at(server, prompts)
        await engine.start()
        async with aclosing(engine.generate(request())) as deltas:
            assert (await anext(deltas)).text == "a"
            assert engine.stats().num_running == 1
        await asyncio.wait_for(server.abandoned.wait(), 30)
        assert engine.stats().num_running == 0
        await engine.stop(0)


async def test_a_stop_string_aborts_the_engines_work(prompts: PromptSide) -> None:
    async with replaying(
        {"/health": json_reply({}), STREAM: event_stream(frames("a", "b", finished=False), end="open")}
    ) as server:
        engine = engine_at(server, prompts)
        await engine.start()
        deltas = await run(engine, request(stop=("b",)))
        assert (outcome(deltas).text, outcome(deltas).stop_reason) == ("a", "b")
        await asyncio.wait_for(server.abandoned.wait(), 30)
        await engine.stop(0)


async def test_n_is_as_many_calls_with_seeds_that_count_up(prompts: PromptSide) -> None:
    body = b'data: {"text_output": "ab"}\n\n'
    backend = CutBackend([body])
    deltas = await run(make_engine(TritonDialect({}), backend, prompts), request(n=3, seed=7))
    assert [outcome(deltas, index).text for index in range(3)] == ["ab"] * 3
    assert sorted(posted["seed"] for _, posted in backend.posted) == [7, 8, 9]
    assert [delta.usage is not None for delta in deltas].count(True) == 1
    assert usage_of(deltas).completion_tokens == 6


async def test_choices_of_different_length_come_as_they_come(prompts: PromptSide) -> None:
    replies: list[Reply] = [event_stream(frames("a")), event_stream(frames("b", "c", "d"))]
    async with replaying({"/health": json_reply({}), STREAM: replies}) as server:
        engine = engine_at(server, prompts)
        await engine.start()
        deltas = await run(engine, request(n=2))
        assert sorted(outcome(deltas, index).text for index in range(2)) == ["a", "bcd"]
        assert usage_of(deltas).completion_tokens == 4
        assert usage_of(deltas).prompt_tokens == 4
        await engine.stop(0)


async def test_one_failing_choice_fails_the_request(prompts: PromptSide) -> None:
    replies = [event_stream(frames("a", finished=False), end="open"), json_reply({"error": "boom"}, 500)]
    async with replaying({"/health": json_reply({}), STREAM: replies}) as server:
        engine = engine_at(server, prompts)
        await engine.start()
        with pytest.raises(EngineError, match="boom"):
            await run(engine, request(n=2))
        await asyncio.wait_for(server.abandoned.wait(), 30)
        await engine.stop(0)


async def test_a_dying_engine(prompts: PromptSide) -> None:
    async with replaying(
        {"/health": json_reply({}), STREAM: event_stream(frames("a", finished=False), end="broken")}
    ) as server:
        engine = engine_at(server, prompts)
        await engine.start()
        deltas: list[Delta] = []
        with pytest.raises(EngineError, match="broke off"):
            await drain(engine.generate(request()), deltas)
        assert [delta.text for delta in deltas] == ["a"]
        await engine.stop(0)


async def test_sixteen_at_once(prompts: PromptSide) -> None:
    async with replaying({"/health": json_reply({}), STREAM: event_stream(frames("a", "b"))}) as server:
        engine = engine_at(server, prompts)
        await engine.start()
        answers = await asyncio.gather(*(run(engine, request()) for _ in range(16)))
        assert [outcome(deltas).text for deltas in answers] == ["ab"] * 16
        await engine.stop(0)


async def test_stop_lets_what_runs_finish(prompts: PromptSide) -> None:
    backend = CutBackend([frames("a"), b""])
    engine = make_engine(LightLLMDialect(), backend, prompts)
    deltas = engine.generate(request(n=1, stop=("zz",)))
    first = await anext(deltas)
    stopping = asyncio.create_task(engine.stop(30.0))
    await asyncio.sleep(0)
    assert not stopping.done()
    await deltas.aclose()
    await asyncio.wait_for(stopping, 30)
    assert first.finish_reason == "stop"


async def test_defaults_fill_what_nobody_said(prompts: PromptSide) -> None:
    backend = CutBackend([frames("a")])
    defaults = GenerationDefaults(temperature=0.25, max_tokens=50)
    engine = make_engine(LightLLMDialect(), backend, prompts, defaults=defaults)
    await run(engine, request())
    await run(engine, request("x" * 980, temperature=0.75))
    await run(engine, request(max_tokens=60))
    parameters = [posted["parameters"] for _, posted in backend.posted]
    assert [entry["temperature"] for entry in parameters] == [0.25, 0.75, 0.25]
    # A default is cut to the room that the prompt leaves; a wish never is.
    assert [entry["max_new_tokens"] for entry in parameters] == [50, 19, 60]
    assert parameters[0]["top_p"] == 1.0


async def test_what_the_protocol_cannot_say_is_found_before_anything_is_sent(prompts: PromptSide) -> None:
    backend = CutBackend([b""])
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        await run(make_engine(LightLLMDialect(), backend, prompts), request(max_tokens=0, echo=True))
    assert backend.posted == []


def test_a_call_is_greedy_as_the_native_engine_is(prompts: PromptSide) -> None:
    prepared = prompts.prepare(request(), 100)
    for temperature, greedy in ((0.0, True), (1e-6, True), (1e-3, False), (None, False)):
        wanted = request(temperature=temperature)
        call = Call(
            model="m", request=wanted, sampling=wanted.sampling, prompt=prepared, max_model_len=100, stream=True
        )
        assert call.greedy is greedy
    assert ServerFacts().max_model_len is None


TOKEN = {"id": 5, "text": "a", "logprob": -1.0}
PLAIN = {"token": {**TOKEN, "count_output_tokens": 1, "prompt_tokens": 4}, "finished": True, "finish_reason": "stop"}


@pytest.mark.parametrize(
    "frame",
    [
        5, "text", [PLAIN], {}, {**PLAIN, "token": None}, {**PLAIN, "finish_reason": ["stop"]},
        *({**PLAIN, "token": {**TOKEN, name: value}} for name in ("text", "id") for value in (1.5, ["a"], {})),
        *({**PLAIN, "token": {**TOKEN, "logprob": value}} for value in ("x", ["a"])),
        *({**PLAIN, "token": {**TOKEN, "prompt_tokens": value}} for value in (-1, 10**30, "4", 1.5, True)),
    ],
)  # fmt: skip
async def test_an_answer_of_no_known_form_is_the_engines_error(prompts: PromptSide, frame: Any) -> None:
    backend = CutBackend([b"data:" + json.dumps(frame).encode() + b"\n\n"])
    with pytest.raises(EngineError, match="no known form"):
        await run(make_engine(LightLLMDialect(), backend, prompts), request(logprobs=0))


@pytest.mark.parametrize("info", [b"<html>", b"[" * 100_000, b"[]", b"5", b'{"max_total_tokens": "many"}'], ids=repr)
async def test_a_server_that_says_nonsense_of_itself(prompts: PromptSide, info: bytes) -> None:
    async with replaying({"/health": Reply(), "/info": Reply(info)}) as server:
        engine = make_engine(TGIDialect(), HttpBackend("tgi", server.url), prompts)
        with pytest.raises(ConfigError, match="is it tgi-generate"):
            await engine.start()
        await engine.stop(0)
