"""The wire cases that need a real model: text pieces, stops, logprobs, sampling, disconnects."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from typing import Any

import openai
import pytest

from tests.e2e.server import RunningServer

pytestmark = pytest.mark.e2e

EMOJI_PROMPT = "Repeat exactly, ten times: 🦕 你好 🎉 🦕 你好 🎉 🦕 你好 🎉 🦕 你好 🎉"


def complete(client: openai.OpenAI, model: str, prompt: Any, **options: Any) -> Any:
    extra = {k: options.pop(k) for k in list(options) if k in EXTRA}
    return client.completions.create(
        model=model, prompt=prompt, **{"temperature": 0, "max_tokens": 32, **options}, extra_body=extra or None
    )


EXTRA = {"ignore_eos", "top_k", "min_tokens", "repetition_penalty", "stop_token_ids", "include_stop_str_in_output"}


def stream_text(client: openai.OpenAI, model: str, prompt: str, **options: Any) -> tuple[str, list[str]]:
    pieces = [chunk.choices[0].text for chunk in complete(client, model, prompt, stream=True, **options)]
    return "".join(pieces), pieces


def test_t1_characters_of_several_tokens(client: openai.OpenAI, model: str) -> None:
    prompt = "🦕 你好 🎉 🦕 你好 🎉 🦕 你好 🎉 🦕 你好 🎉 🦕"
    seen_multibyte = False
    for max_tokens in range(1, 14):  # some of these cut inside a character
        whole = complete(client, model, prompt, max_tokens=max_tokens, ignore_eos=True).choices[0].text
        streamed, pieces = stream_text(client, model, prompt, max_tokens=max_tokens, ignore_eos=True)
        assert streamed == whole
        assert not any("\ufffd" in piece for piece in pieces[:-1]), "only a cut tail may be incomplete"
        seen_multibyte |= any(ord(char) > 0x2000 for char in whole)
    assert seen_multibyte, "the prompt must make the model write such characters"


async def test_t1_eight_streams_at_once(server: RunningServer, model: str) -> None:
    prompt = "🦕 你好 🎉 🦕 你好 🎉 🦕 你好 🎉 🦕 你好 🎉 🦕"
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:

        async def one() -> str:
            text = ""
            async for chunk in await client.completions.create(
                model=model, prompt=prompt, max_tokens=24, temperature=0, stream=True
            ):
                assert "\ufffd" not in chunk.choices[0].text or chunk.choices[0].finish_reason == "length"
                text += chunk.choices[0].text
            return text

        texts = await asyncio.gather(*(one() for _ in range(8)))
        whole = await client.completions.create(model=model, prompt=prompt, max_tokens=24, temperature=0)
    assert set(texts) == {whole.choices[0].text}


def test_t3_stop_string_over_many_tokens(client: openai.OpenAI, model: str) -> None:
    prompt = "The alphabet: A B C D E F G H I J K L M N O P\nThe alphabet: A B C D"
    free = complete(client, model, prompt, max_tokens=24).choices[0].text
    assert " G H I J K" in free
    stop = " G H I J K"
    whole = complete(client, model, prompt, max_tokens=24, stop=[stop]).choices[0]
    assert whole.text == free.split(stop)[0]
    assert whole.finish_reason == "stop"
    streamed, _ = stream_text(client, model, prompt, max_tokens=24, stop=[stop])
    assert streamed == whole.text
    kept = complete(client, model, prompt, max_tokens=24, stop=[stop], include_stop_str_in_output=True).choices[0]
    assert kept.text == whole.text + stop
    # A beginning that does not complete is sent after all.
    near, _ = stream_text(client, model, prompt, max_tokens=24, stop=[" G H I J X"])
    assert near == free


def test_t4_no_eos_text_in_an_answer(client: openai.OpenAI, model: str) -> None:
    reply = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Say hi."}],
        max_tokens=64,
        temperature=0,
        extra_body={"skip_special_tokens": False},
    )
    assert reply.choices[0].finish_reason == "stop"
    assert "<|im_end|>" not in (reply.choices[0].message.content or "")


def test_c1_choices_of_different_lengths_streamed(client: openai.OpenAI, model: str) -> None:
    chunks = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Say something short."}],
        n=3,
        temperature=1.5,
        seed=7,
        max_tokens=40,
        stream=True,
    )
    finished: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            assert choice.index not in finished, "nothing follows a finish reason"
            assert choice.finish_reason != ""
            if choice.finish_reason is not None:
                finished[choice.index] = choice.finish_reason
    assert sorted(finished) == [0, 1, 2]


def test_c3_echo_with_logprobs_of_token_ids(server: RunningServer, client: openai.OpenAI, model: str) -> None:
    ids = [504, 3575, 282, 4649, 314]
    logprobs = complete(client, model, ids, echo=True, logprobs=1, max_tokens=1).choices[0].logprobs
    lengths = {len(getattr(logprobs, field)) for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    assert lengths == {len(ids) + 1}
    assert logprobs.token_logprobs[0] is None
    assert all(value is not None and value <= 0 for value in logprobs.token_logprobs[1:])


def test_c4_logprobs_are_strict_json_under_masks(client: openai.OpenAI, model: str) -> None:
    for options in ({"top_k": 1}, {"logit_bias": {"260": -100, "253": -100}}, {"temperature": 2.0, "seed": 1}):
        reply = complete(client, model, "Once upon a time", logprobs=5, max_tokens=4, **options)
        raw = json.loads(reply.model_dump_json())["choices"][0]["logprobs"]
        values = [*raw["token_logprobs"], *(v for top in raw["top_logprobs"] for v in top.values())]
        assert all(math.isfinite(value) for value in values)


def test_s1_tiny_temperatures_are_greedy(client: openai.OpenAI, model: str) -> None:
    greedy = complete(client, model, "Water is", temperature=0).choices[0].text
    for exponent in range(3, 10):
        assert complete(client, model, "Water is", temperature=10.0**-exponent).choices[0].text == greedy


async def test_s2_seeds_whatever_else_is_in_the_batch(server: RunningServer, model: str) -> None:
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:

        async def seeded() -> str:
            reply = await client.completions.create(
                model=model, prompt="My favourite animal is", max_tokens=24, temperature=1.0, seed=1234
            )
            return str(reply.choices[0].text)

        async def noise(number: int) -> None:
            await client.completions.create(model=model, prompt=f"{number} is", max_tokens=30 + number, temperature=1.3)

        alone = await seeded()
        crowd = [asyncio.create_task(noise(number)) for number in range(6)]
        assert [await seeded() for _ in range(3)] == [alone] * 3
        await asyncio.gather(*crowd)
        chat = [
            (
                await client.chat.completions.create(
                    model=model,
                    messages=[{"role": "user", "content": "Name an animal."}],
                    max_tokens=24,
                    temperature=1.0,
                    seed=99,
                )
            )
            .choices[0]
            .message.content
            for _ in range(2)
        ]
        assert chat[0] == chat[1]
        different = await client.completions.create(
            model=model, prompt="My favourite animal is", max_tokens=24, temperature=1.0, seed=1235
        )
        assert different.choices[0].text != alone


def test_s4_ignore_eos_gives_exactly_as_many(client: openai.OpenAI, model: str) -> None:
    reply = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Say hi."}],
        max_tokens=60,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 60


def test_min_tokens_against_eos_and_stop_strings(client: openai.OpenAI, model: str) -> None:
    reply = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Say hi."}],
        max_tokens=60,
        temperature=0,
        stop=["e"],
        extra_body={"min_tokens": 20},
    )
    assert reply.usage is not None
    assert reply.usage.completion_tokens >= 20


def test_l1_prompt_over_the_context(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "word " * 9000}])
    assert caught.value.code == "context_length_exceeded"
    assert "8192" in caught.value.message
    assert not re.search(r"-\d", caught.value.message), "no negative number that the user did not send"


@pytest.mark.parametrize("bad", [49152, 10**12, -1])
def test_l3_token_ids_outside_the_vocabulary(client: openai.OpenAI, model: str, bad: int) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, model, [504, bad])
    assert caught.value.param is not None
    assert caught.value.param.startswith("prompt")


def gauge(server: RunningServer, name: str) -> float:
    import urllib.request

    with urllib.request.urlopen(f"{server.url}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def test_d1_a_client_that_leaves_frees_its_work(server: RunningServer, client: openai.OpenAI, model: str) -> None:
    stream = complete(client, model, "Count: 1 2 3", max_tokens=4000, stream=True, ignore_eos=True)
    for number, _ in enumerate(stream):
        if number == 2:
            break
    assert gauge(server, "llm_inference_num_requests_running") >= 1
    stream.close()
    deadline = time.monotonic() + 30
    while gauge(server, "llm_inference_num_requests_running") > 0:
        assert time.monotonic() < deadline, "the abandoned request still runs"
        time.sleep(0.05)
    assert gauge(server, "llm_inference_kv_cache_usage_ratio") == 0


def test_d2_a_bad_request_to_stream_is_plain_json(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError):
        complete(client, model, "x", stream=True, n=0)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "x"}],
            stream=True,
            extra_body={"structured_outputs": {"regex": "(unclosed"}},
        )
    assert isinstance(caught.value.body, dict)


def test_d3_prefix_cache_changes_nothing(client: openai.OpenAI, model: str) -> None:
    prompt = "A long and winding introduction about rivers, mountains and the sea. " * 6 + "In summary,"

    def look(text: str) -> tuple[str, list[float]]:
        choice = complete(client, model, text, logprobs=1, max_tokens=24).choices[0]
        return choice.text, choice.logprobs.token_logprobs

    cold = look(prompt)
    warm = look(prompt)
    other_tail = look(prompt.replace("In summary,", "However,"))
    again = look(prompt)
    assert warm[0] == cold[0] == again[0]
    assert other_tail[0] != cold[0]
    for logprobs in (warm[1], again[1]):
        assert logprobs == pytest.approx(cold[1], abs=1e-3)


async def test_d5_a_huge_body_stalls_nobody(server: RunningServer, model: str) -> None:
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0, timeout=120) as client:
        stalls: list[float] = []
        # A machine that is busy otherwise may stall us as well, but not every time.
        while len(stalls) < 3 and min(stalls, default=1.0) >= 1.0:
            stalls.append(await _longest_stall(server, client, model))
        assert min(stalls) < 1.0


async def _longest_stall(server: RunningServer, client: openai.AsyncOpenAI, model: str) -> float:
    """Seconds that a probe or a stream has to wait at most while a body of 10 MB is refused."""
    gaps: list[float] = []
    started, done = asyncio.Event(), asyncio.Event()

    async def stream() -> None:
        last = time.monotonic()
        async with await client.completions.create(
            model=model,
            prompt="Count: 1",
            max_tokens=4000,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        ) as chunks:
            async for _ in chunks:
                now = time.monotonic()
                gaps.append(now - last)
                last = now
                started.set()
                if done.is_set():
                    break

    async def probe() -> None:
        import aiohttp

        async with aiohttp.ClientSession() as session:
            while not done.is_set():
                begun = time.monotonic()
                async with session.get(f"{server.url}/health") as reply:
                    assert reply.status == 200
                gaps.append(time.monotonic() - begun)
                await asyncio.sleep(0.02)

    streaming = asyncio.create_task(stream())
    await started.wait()
    gaps.clear()
    probing = asyncio.create_task(probe())
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(model=model, prompt="words and more words " * 500_000)  # 10 MB
    assert caught.value.code == "context_length_exceeded"
    done.set()
    await asyncio.gather(streaming, probing)
    return max(gaps)


async def test_d6_short_and_long_together_equal_alone(server: RunningServer, model: str) -> None:
    prompts = ["Hi", "The history of bread begins in ancient times. " * 30, "1, 2, 3,"]
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:

        async def one(prompt: str) -> str:
            reply = await client.completions.create(model=model, prompt=prompt, max_tokens=24, temperature=0)
            return str(reply.choices[0].text)

        alone = [await one(prompt) for prompt in prompts]
        assert await asyncio.gather(*(one(prompt) for prompt in prompts)) == alone


def test_h7_a_bad_schema_harms_nobody(client: openai.OpenAI, model: str) -> None:
    for schema in ({"type": "no-such-type"}, {"type": "string", "pattern": "(["}, {"$ref": "#/$defs/absent"}):
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "x"}],
                response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},  # type: ignore[arg-type,misc]
            )
    assert complete(client, model, "The capital of France is").choices[0].text


def test_a_schema_is_obeyed(client: openai.OpenAI, model: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "Rome"]},
            "population": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["city", "population"],
        "additionalProperties": False,
    }
    for seed in range(3):
        reply = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "The capital of France as JSON."}],
            response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": schema}},  # type: ignore[arg-type,misc]
            temperature=1.0,
            seed=seed,
            max_tokens=100,
        )
        parsed = json.loads(reply.choices[0].message.content or "")
        assert parsed["city"] in ("Paris", "Rome")
        assert 0 <= parsed["population"] <= 99


def test_a_required_tool_is_called(client: openai.OpenAI, model: str) -> None:
    tool: Any = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 12}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    messages: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
    options: Any = {"tools": [tool], "tool_choice": "required", "max_tokens": 200, "temperature": 0}
    whole = client.chat.completions.create(model=model, messages=messages, **options).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.tool_calls
    call: Any = whole.message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}
    arguments = ""
    for chunk in client.chat.completions.create(model=model, messages=messages, stream=True, **options):
        for choice in chunk.choices:
            for fragment in choice.delta.tool_calls or []:
                if fragment.index == 0 and fragment.function is not None:
                    arguments += fragment.function.arguments or ""
    assert json.loads(arguments) == json.loads(call.function.arguments)


async def test_a_short_request_does_not_wait_for_long_ones(server: RunningServer, model: str) -> None:
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0, timeout=120) as client:

        async def long(number: int) -> None:
            await client.completions.create(
                model=model, prompt=f"{number}:", max_tokens=400, temperature=0, extra_body={"ignore_eos": True}
            )

        running = [asyncio.create_task(long(number)) for number in range(2)]
        await asyncio.sleep(0.5)
        reply = await client.completions.create(model=model, prompt="2 + 2 =", max_tokens=1, temperature=0)
        assert reply.choices[0].finish_reason == "length"
        assert not any(task.done() for task in running), "the short one came first"
        await asyncio.gather(*running)


def test_beam_search(client: openai.OpenAI, model: str) -> None:
    reply = client.completions.create(
        model=model, prompt="The capital of France is", n=2, max_tokens=8, extra_body={"num_beams": 3}
    )
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert "Paris" in reply.choices[0].text
    assert reply.choices[0].text != reply.choices[1].text
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 16
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=model, prompt="x", temperature=0.7, extra_body={"num_beams": 3})
    assert caught.value.param == "temperature"
