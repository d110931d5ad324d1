from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from llm_inference.adapters import llamacpp, openai, sglang, tgi, vllm
from llm_inference.adapters.openai_http import OpenAIEngine, OpenAISettings
from llm_inference.engine.types import ChatPrompt, GenerationDefaults
from llm_inference.errors import (
    ConfigError,
    ContextLengthError,
    EngineError,
    InvalidRequestError,
    NotReadyError,
    OverloadedError,
    StartupError,
)
from llm_inference.text.tokenizer import Tokenizer
from tests.adapters.upstream_server import (
    CHAT,
    ForeignServer,
    Script,
    collect,
    ends,
    engine_at,
    foreign,
    request,
    said,
    sse,
    texts,
    usage,
)

ANSWER = sse(said("", role="assistant"), said("Hé"), said("llo ✓"), said(finish="stop"), usage(5, 3))


async def test_an_answer_cut_at_every_byte() -> None:
    async with foreign(Script()) as server, engine_at(openai.PROFILE, server) as engine:
        for place in range(1, len(ANSWER), 7):
            server.script.pieces = [ANSWER[:place], ANSWER[place:]]
            deltas = await collect(engine, request())
            assert texts(deltas) == "Héllo ✓"
            assert ends(deltas) == {0: "stop"}
            assert deltas[-1].usage is not None
            assert (deltas[-1].usage.prompt_tokens, deltas[-1].usage.completion_tokens) == (5, 3)
        server.script.pieces = [ANSWER[i : i + 1] for i in range(len(ANSWER))]
        assert texts(await collect(engine, request())) == "Héllo ✓"
        assert len(server.connections) == 1, "one connection serves one request after the other"


async def test_the_body_that_is_sent() -> None:
    async with foreign(Script([ANSWER])) as server:
        defaults = GenerationDefaults(temperature=0.5, top_p=0.9)
        async with engine_at(vllm.PROFILE, server, defaults=defaults, api_key="secret") as engine:
            await collect(engine, request(temperature=0.1, top_k=5, stop=("x",), max_tokens=7, priority=3, seed=1))
            await collect(engine, request(prompt=(1, 2, 3)))
    chat, completion = server.bodies
    assert chat == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0.1,
        "top_p": 0.9,
        "top_k": 5,
        "stop": ["x"],
        "max_tokens": 7,
        "priority": 3,
        "seed": 1,
        "return_token_ids": True,
    }
    assert completion["prompt"] == [1, 2, 3]
    assert completion["max_tokens"] == 64 - 3, "or vLLM would stop at 16 tokens, as for null"
    assert completion["temperature"] == 0.5
    assert server.headers[0]["x-request-id"] == "r-1"
    assert server.headers[0]["authorization"] == "Bearer secret"


async def test_vllm_shows_an_echo_or_token_ids() -> None:
    async with foreign(Script([ANSWER])) as server, engine_at(vllm.PROFILE, server) as engine:
        await collect(engine, request(prompt=(1, 2), echo=True))
        await collect(engine, request(prompt=(1, 2)))
    assert [body.get("return_token_ids") for body in server.bodies] == [None, True]


async def test_renames_and_the_sign_of_the_priority() -> None:
    async with foreign(Script([ANSWER])) as server, engine_at(sglang.PROFILE, server) as engine:
        await collect(engine, request(stop=("x",), include_stop_str_in_output=True, priority=2))
    assert server.bodies[0]["priority"] == -2
    assert server.bodies[0]["no_stop_trim"] is True


async def test_what_the_server_cannot_do_is_refused_and_not_dropped() -> None:
    async with foreign(Script([ANSWER])) as server, engine_at(tgi.PROFILE, server) as engine:
        with pytest.raises(InvalidRequestError, match="min_p") as caught:
            await collect(engine, request(min_p=0.5))
        assert caught.value.param == "min_p"
        with pytest.raises(InvalidRequestError, match="chats alone"):
            await collect(engine, request(prompt="text", logprobs=1))
        with pytest.raises(InvalidRequestError, match="token ids"):
            await collect(engine, request(prompt=(1, 2)))
        assert server.bodies == []


async def test_completions_without_a_length_where_the_server_would_stop_at_16() -> None:
    async with foreign(Script([ANSWER])) as server, engine_at(sglang.PROFILE, server) as engine:
        await collect(engine, request(prompt=(1, 2, 3)))
        assert server.bodies[0]["max_tokens"] == 64 - 3
        with pytest.raises(InvalidRequestError) as caught:
            await collect(engine, request(prompt="text"))
        assert caught.value.param == "max_tokens"


async def test_a_server_with_a_tokenizer_is_asked_how_long_a_prompt_is() -> None:
    async with foreign(Script([ANSWER])) as server, engine_at(vllm.PROFILE, server) as engine:
        await collect(engine, request(prompt="five words"))
    assert server.bodies == [
        {"model": "m", "return_token_strs": True, "prompt": "five words", "add_special_tokens": True},
        {**server.bodies[1], "max_tokens": 64 - 2},
    ]


async def test_a_server_that_minds_no_length_gets_a_number_and_no_prompt_too_long(default_model_dir: Any) -> None:
    from llm_inference.text.chat import encode_chat

    tokenizer = Tokenizer.load(default_model_dir)
    profile = dataclasses.replace(tgi.PROFILE, completion_length="always")
    models = {"data": [{"id": "m"}]}
    async with foreign(Script([ANSWER], models=models)) as server:
        async with engine_at(profile, server, tokenizer=tokenizer, files_max_model_len=100) as engine:
            assert engine.info.max_model_len == 100
            await collect(engine, request())
            assert server.bodies[-1]["max_tokens"] == 100 - len(encode_chat(tokenizer, CHAT))
            await collect(engine, request(prompt="a text", max_tokens=5))
            assert server.bodies[-1]["max_tokens"] == 5
            with pytest.raises(ContextLengthError, match=r"has 201 tokens; .* is 100 tokens"):
                await collect(engine, request(prompt="a " * 200 + "b"))
            with pytest.raises(ContextLengthError, match="max_tokens is 99") as caught:
                await collect(engine, request(prompt="a text", max_tokens=99))
            assert caught.value.param == "max_tokens"
            assert len(server.bodies) == 2
        async with engine_at(profile, server, files_max_model_len=100) as engine:
            await collect(engine, request())
            assert "max_tokens" not in server.bodies[-1], "nobody here can count"


@pytest.mark.parametrize(
    ("status", "body", "kind", "param"),
    [
        (400, b'{"error": {"message": "bad top_p", "param": "top_p", "code": 400}}', InvalidRequestError, "top_p"),
        (422, b'{"detail": [{"loc": ["body", "n"], "msg": "too big"}]}', InvalidRequestError, "n"),
        (422, b'{"error": "Input validation error: x", "error_type": "validation"}', InvalidRequestError, None),
        (400, b'{"message": "maximum context length is 64", "object": "error"}', ContextLengthError, None),
        (400, b'{"error": {"code": 400, "type": "exceed_context_size_error", "message": "m", "n_ctx": 4}}',
         ContextLengthError, None),
        (401, b'{"error": "Unauthorized"}', EngineError, None),
        (403, b"", EngineError, None),
        (404, b'{"error": {"message": "no such model"}}', EngineError, None),
        (429, b'{"error": {"message": "slow down"}}', OverloadedError, None),
        (503, b'{"error": "busy"}', OverloadedError, None),
        (503, b'{"error": {"message": "Loading model", "code": 503}}', NotReadyError, None),
        (500, b"<html>oops</html>", EngineError, None),
    ],
)  # fmt: skip
async def test_refusals(status: int, body: bytes, kind: type[Exception], param: str | None) -> None:
    script = Script([body], status=status, content_type="application/json", headers={"Retry-After": "7"})
    async with foreign(script) as server, engine_at(openai.PROFILE, server) as engine:
        with pytest.raises(kind) as caught:
            await collect(engine, request())
        assert type(caught.value) is kind
        assert getattr(caught.value, "param", None) == param
        if kind in (OverloadedError, NotReadyError):
            assert getattr(caught.value, "retry_after_s", None) == 7.0


@pytest.mark.parametrize(
    ("tail", "kind"),
    [
        (b'data: {"error": {"message": "boom", "code": 500}}\n\n', EngineError),
        (b'{"error": "an error was encountered"}\n', EngineError),
        (b'data: {"error": {"message": "boom", "type": "BadRequestError", "code": 400}}\n\n', InvalidRequestError),
        (b'data: {"object": "error", "message": "boom", "code": 50001}\n\n', EngineError),
        (b"data: not json\n\n", EngineError),
        (b"", EngineError),  # it just ends
        (b"data: [DONE]\n\n", EngineError),
    ],
)
async def test_errors_inside_a_stream_end_it_once(tail: bytes, kind: type[Exception]) -> None:
    script = Script([sse(said("Hel"), done=False), tail])
    async with foreign(script) as server, engine_at(openai.PROFILE, server) as engine:
        generator = engine.generate(request())
        assert (await anext(generator)).text == "Hel"
        with pytest.raises(kind):
            await anext(generator)
        with pytest.raises(StopAsyncIteration):
            await anext(generator)


async def test_a_connection_that_dies_mid_stream() -> None:
    script = Script([sse(said("Hel"), done=False)], die=True)
    async with foreign(script) as server, foreign(Script([ANSWER])) as other:
        async with engine_at(openai.PROFILE, server, other) as engine:
            with pytest.raises(EngineError, match="broke the connection"):
                await collect(engine, request())
        assert other.bodies == [], "never a second time after the first token"


async def test_a_missing_done_and_a_plain_json_answer() -> None:
    whole = b'{"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "eos_token"}], "usage": null}'
    async with (
        foreign(Script([sse(said("Hi"), said(finish="length"), done=False)])) as server,
        engine_at(openai.PROFILE, server) as engine,
    ):
        deltas = await collect(engine, request())
        assert (texts(deltas), ends(deltas)) == ("Hi", {0: "length"})
        server.script.pieces, server.script.content_type = [whole], "application/json"
        deltas = await collect(engine, request())
        assert (texts(deltas), ends(deltas)) == ("Hi", {0: "stop"})


async def test_closing_the_generator_closes_the_connection() -> None:
    async with (
        foreign(Script([sse(said("Hel"), done=False)], hang=True)) as server,
        engine_at(openai.PROFILE, server) as engine,
    ):
        generator = engine.generate(request())
        assert (await anext(generator)).text == "Hel"
        assert server.num_open == 1
        assert engine.stats().num_running == 1
        await generator.aclose()
        await asyncio.wait_for(server.closed.wait(), 30)
        assert server.num_open == 0
        assert engine.stats().num_running == 0


async def test_cancelling_before_the_first_token_closes_the_connection() -> None:
    async with foreign(Script(hang=True)) as server, engine_at(openai.PROFILE, server) as engine:
        task = asyncio.create_task(collect(engine, request()))
        while not server.num_open:
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.wait_for(server.closed.wait(), 30)
        assert server.num_open == 0


async def test_n_by_fan_out() -> None:
    answers = iter(
        [sse(said("A"), said(finish="stop"), usage(5, 1)), sse(said("BB"), said(finish="length"), usage(5, 2))]
    )
    script = Script(reply=lambda body: [next(answers)])
    async with foreign(script) as server, engine_at(tgi.PROFILE, server) as engine:
        deltas = await collect(engine, request(n=2, seed=7))
    assert sorted(body["seed"] for body in server.bodies) == [7, 8]
    assert all("n" not in body for body in server.bodies)
    assert sorted((texts(deltas, 0), texts(deltas, 1))) == ["A", "BB"]
    assert sorted(ends(deltas).values()) == ["length", "stop"]
    assert deltas[-1].usage is not None
    assert (deltas[-1].usage.prompt_tokens, deltas[-1].usage.completion_tokens) == (5, 3)


async def test_one_failure_of_a_fan_out_ends_all() -> None:
    answers = iter([[sse(said("A"), done=False), b'data: {"error": "boom"}\n\n'], [sse(said("B"), done=False)]])
    async with foreign(Script(reply=lambda body: next(answers))) as server, engine_at(tgi.PROFILE, server) as engine:
        with pytest.raises(EngineError):
            await collect(engine, request(n=2))


async def test_stop_strings_are_ours_where_the_server_has_none() -> None:
    chunks = [said(piece) for piece in ("one S", "TO", "P two")]
    async with (
        foreign(Script([sse(*chunks, done=False)], hang=True)) as server,
        engine_at(tgi.PROFILE, server) as engine,
    ):
        deltas = await collect(engine, request(stop=("STOP",)))
        assert "stop" not in server.bodies[0]
        assert texts(deltas) == "one "
        assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", "STOP")
        await asyncio.wait_for(server.closed.wait(), 30)
        deltas = await collect(engine, request(stop=("STOP",), include_stop_str_in_output=True))
        assert texts(deltas) == "one STOP"


async def test_a_stop_string_that_is_to_be_shown_is_ours_where_the_server_hides_it() -> None:
    async with foreign(Script([ANSWER])) as server, engine_at(llamacpp.PROFILE, server) as engine:
        assert texts(await collect(engine, request(stop=("llo",), include_stop_str_in_output=True))) == "Héllo"
        assert "stop" not in server.bodies[0]
        assert texts(await collect(engine, request(stop=("never",)))) == "Héllo ✓"
        assert server.bodies[1]["stop"] == ["never"]


async def test_no_connection_serves_twice_where_the_server_drops_it_in_silence() -> None:
    async with foreign(Script([ANSWER])) as server, engine_at(llamacpp.PROFILE, server) as engine:
        for _ in range(3):
            await collect(engine, request())
        assert {headers["connection"] for headers in server.headers} == {"close"}


async def test_greedy_choices_are_as_many_requests_where_the_server_gives_one() -> None:
    async with foreign(Script([ANSWER])) as server, engine_at(vllm.PROFILE, server) as engine:
        deltas = await collect(engine, request(n=2, temperature=0.0))
        assert [texts(deltas, index) for index in range(2)] == ["Héllo ✓"] * 2
        assert ["n" in body for body in server.bodies] == [False, False]


async def test_a_forced_call_where_the_server_forces_none() -> None:
    """By a schema of the call, and read out of the text; the usage is the server's."""
    parts = ('{"name": "f", "argu', 'ments": {"x": ', "1}}", "\n")
    answer = sse(*(said(part) for part in parts), said(finish="stop"), usage(5, 9))
    tools = ({"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}})
    prompt = ChatPrompt(messages=CHAT.messages, tools=tools)
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [_named("g")]}}
    async with foreign(Script([answer])) as server, engine_at(llamacpp.PROFILE, server) as engine:
        deltas = await collect(engine, request(prompt, tool_choice=_named("f")))
        assert texts(await collect(engine, request(prompt, tool_choice=allowed))) == "".join(parts)
    calls = [call for delta in deltas for call in delta.tool_calls]
    assert [call.name for call in calls if call.name] == ["f"]
    assert "".join(call.arguments for call in calls) == '{"x": 1}'
    assert (texts(deltas), deltas[-1].finish_reason) == ("", "tool_calls")
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.completion_tokens == 9
    forced, chosen = server.bodies
    assert forced["response_format"]["json_schema"]["schema"]["properties"]["name"] == {"const": "f"}
    assert forced["tool_choice"] == "none"
    assert (chosen["tool_choice"], chosen["tools"]) == ("auto", [tools[1]])


def _named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


async def test_what_would_not_reach_the_model_or_not_fit(default_model_dir: Any) -> None:
    tokenizer = Tokenizer.load(default_model_dir)
    tools = ({"type": "function", "function": {"name": "f"}},)
    async with (
        foreign(Script([ANSWER])) as server,
        engine_at(vllm.PROFILE, server, tokenizer=tokenizer) as engine,
    ):
        with pytest.raises(InvalidRequestError, match="chat template does not show tools"):
            await collect(engine, request(ChatPrompt(messages=CHAT.messages, tools=tools)))
        with pytest.raises(ContextLengthError, match="64 tokens"):
            await collect(engine, request(max_tokens=64))
        assert not server.bodies


async def test_more_stop_strings_than_the_server_takes() -> None:
    async with foreign(Script([ANSWER])) as server, engine_at(openai.PROFILE, server) as engine:
        assert texts(await collect(engine, request(stop=("1", "2", "3", "4", "llo")))) == "Hé"
    assert "stop" not in server.bodies[0]


async def test_one_retry_on_another_server_before_the_first_token() -> None:
    refusal = Script([b'{"error": "x"}'], status=500, content_type="application/json")
    async with foreign(refusal) as bad, foreign(Script([ANSWER])) as good:
        async with engine_at(openai.PROFILE, bad, good) as engine:
            for _ in range(5):
                assert texts(await collect(engine, request())) == "Héllo ✓"
        assert len(bad.bodies) < 5, "a server that keeps failing is left alone"
        assert len(good.bodies) == 5


async def test_a_refused_request_is_not_tried_elsewhere() -> None:
    refusal = Script([b'{"error": "x"}'], status=400, content_type="application/json")
    async with foreign(refusal) as one, foreign(refusal) as two, engine_at(openai.PROFILE, one, two) as engine:
        with pytest.raises(InvalidRequestError):
            await collect(engine, request())
        assert len(one.bodies) + len(two.bodies) == 1


async def test_both_servers_full_is_said_once_with_retry_after() -> None:
    full = Script([b"{}"], status=429, content_type="application/json", headers={"Retry-After": "3"})
    async with foreign(full) as one, foreign(full) as two, engine_at(openai.PROFILE, one, two) as engine:
        with pytest.raises(OverloadedError) as caught:
            await collect(engine, request())
        assert caught.value.retry_after_s == 3
        assert len(one.bodies) + len(two.bodies) == 2


async def test_nobody_listens() -> None:
    async with foreign(Script([ANSWER])) as server:
        url = server.url
        async with engine_at(openai.PROFILE, server) as engine:
            gone = ForeignServer("http://127.0.0.1:9", Script())
            with pytest.raises(StartupError, match="not there"):
                async with engine_at(openai.PROFILE, gone):
                    pass
            engine._upstream.pool.endpoints[0].url = gone.url
            with pytest.raises(NotReadyError, match="cannot be reached"):
                await collect(engine, request())
            health = await engine.health()
            assert (health.live, health.ready) == (True, False)
            assert "does not answer" in health.reason
            engine._upstream.pool.endpoints[0].url = url
            assert texts(await collect(engine, request())) == "Héllo ✓", "half open: it is tried, and is back"


async def test_what_the_start_finds_out() -> None:
    async with foreign(Script([ANSWER])) as server:
        engine = OpenAIEngine(OpenAISettings(name="served", model="m", urls=(server.url,)), openai.PROFILE)
        await engine.start()
        assert engine.info.max_model_len == 64
        assert (engine.info.name, engine.info.engine) == ("served", "openai")
        await engine.stop(0)
        server.script.models = {"data": [{"id": "mm", "meta": {"n_ctx": 9}}]}
        with pytest.raises(ConfigError, match="did you mean 'mm'"):
            async with engine_at(openai.PROFILE, server):
                pass
        server.script.models_status = 401
        with pytest.raises(ConfigError, match="api_key"):
            async with engine_at(openai.PROFILE, server):
                pass


async def test_usage_is_counted_by_our_tokenizer_where_none_is_sent(default_model_dir: Any) -> None:
    from llm_inference.text.chat import encode_chat

    tokenizer = Tokenizer.load(default_model_dir)
    async with foreign(Script([sse(said("Hello world"), said(finish="stop"))])) as server:
        async with engine_at(tgi.PROFILE, server, tokenizer=tokenizer) as engine:
            counted = (await collect(engine, request()))[-1].usage
            assert counted is not None
            assert counted.prompt_tokens == len(encode_chat(tokenizer, CHAT))
            assert counted.completion_tokens == len(tokenizer.encode("Hello world", False))
            await collect(engine, request(prompt=(19556,)))
            assert server.bodies[-1]["prompt"] == tokenizer.decode((19556,), skip_special_tokens=False)
        async with engine_at(tgi.PROFILE, server) as engine:
            assert (await collect(engine, request()))[-1].usage is None, "no guess"
