from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_inference.adapters.generate_http import HttpBackend
from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.adapters.ollama_native import OllamaDialect
from llm_inference.engine.types import ChatPrompt, Delta, Grammar, Usage
from llm_inference.errors import ConfigError, EngineError, InvalidRequestError
from tests.adapters.generate_model import make_engine
from tests.adapters.replay import (
    CutBackend,
    chat,
    drain,
    json_reply,
    many_cuts,
    one_cut,
    outcome,
    replaying,
    request,
    run,
    usage_of,
)

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


def load(shared_dir: Path, *numbers: int) -> list[dict[str, Any]]:
    """The documented objects with these numbers."""
    folder = shared_dir / "fixtures" / "ollama"
    return [json.loads(next(folder.glob(f"{number:03}_*.json")).read_text()) for number in numbers]


def lines(*values: Any) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


async def test_the_documented_text_stream_cut_anywhere(shared_dir: Path) -> None:
    frames = load(shared_dir, *range(32, 39))
    body = lines(*frames)
    for chunks in (*one_cut(body), *many_cuts(body)):
        deltas = await run(make_engine(OllamaDialect(), CutBackend(chunks), None), request())
        assert (outcome(deltas).text, outcome(deltas).finish_reason) == ("That's a fantastic question!", "stop")


async def test_the_documented_chat_stream(shared_dir: Path) -> None:
    body = lines(*load(shared_dir, 11, 12))
    for chunks in many_cuts(body):
        deltas = await run(make_engine(OllamaDialect(), CutBackend(chunks), None), request(chat("Hi")))
        assert (outcome(deltas).text, outcome(deltas).finish_reason) == ("The", "stop")
        assert usage_of(deltas) == Usage(prompt_tokens=26, completion_tokens=282)


async def test_a_whole_reply(shared_dir: Path) -> None:
    [reply] = load(shared_dir, 40)
    backend = CutBackend([json.dumps(reply).encode()], content_type="application/json")
    deltas = await run(make_engine(OllamaDialect(), backend, None, stream=False), request())
    assert outcome(deltas).text == "Hello! How can I help you today?"
    assert usage_of(deltas) == Usage(prompt_tokens=11, completion_tokens=18)
    assert backend.posted[0][1]["stream"] is False


async def test_every_documented_whole_reply_ends_once(shared_dir: Path) -> None:
    for number in (3, 4, 5, 6, 7, 8, 15, 17, 20, 21, 22):
        [reply] = load(shared_dir, number)
        backend = CutBackend([json.dumps(reply).encode()], content_type="application/json")
        deltas = await run(make_engine(OllamaDialect(), backend, None, stream=False), request())
        message = reply.get("message") or {}
        assert outcome(deltas).text == (reply.get("response") or message.get("content"))
        assert usage_of(deltas) == Usage(reply["prompt_eval_count"], reply["eval_count"])


async def test_tool_calls(shared_dir: Path) -> None:
    body = lines(*load(shared_dir, 13, 14))
    backend = CutBackend([body])
    prompt = chat("Weather in Tokyo?", tools=(WEATHER,))
    deltas = await run(make_engine(OllamaDialect(), backend, None), request(prompt))
    [call] = [call for delta in deltas for call in delta.tool_calls]
    assert (call.index, call.name, json.loads(call.arguments)) == (0, "get_weather", {"city": "Tokyo"})
    assert call.id
    assert outcome(deltas).finish_reason == "tool_calls"
    assert usage_of(deltas) == Usage(prompt_tokens=169, completion_tokens=15)
    assert backend.posted[0][1]["tools"] == [WEATHER]
    await run(make_engine(OllamaDialect(), backend, None), request(prompt, tool_choice="none"))
    assert "tools" not in backend.posted[1][1]


async def test_thinking_is_reasoning() -> None:
    body = lines(
        {"message": {"thinking": "Hm", "content": ""}, "done": False},
        {"message": {"content": "Yes"}, "done": True, "done_reason": "length"},
    )
    deltas = await run(make_engine(OllamaDialect(), CutBackend([body]), None), request(chat("Hi")))
    assert "".join(delta.reasoning for delta in deltas) == "Hm"
    assert (outcome(deltas).text, outcome(deltas).finish_reason) == ("Yes", "length")


async def test_a_documented_error_inside_the_stream(shared_dir: Path) -> None:
    frames = load(shared_dir, 27, 28, 29, 30, 31)
    body = lines(*frames)
    for chunks in many_cuts(body, times=10):
        deltas: list[Delta] = []
        engine = make_engine(OllamaDialect(), CutBackend(chunks), None)
        with pytest.raises(EngineError, match="an error was encountered while running the model"):
            await drain(engine.generate(request()), deltas)
        assert "".join(delta.text for delta in deltas) == "".join(frame["response"] for frame in frames[:4])


async def test_a_stream_without_its_last_line(shared_dir: Path) -> None:
    with pytest.raises(EngineError, match="ended before its end"):
        await run(make_engine(OllamaDialect(), CutBackend([lines(*load(shared_dir, 1))]), None), request())


async def test_texts_go_raw_and_chats_to_its_template(shared_dir: Path, prompts: PromptSide) -> None:
    backend = CutBackend([lines(*load(shared_dir, 38))])
    engine = make_engine(OllamaDialect(), backend, prompts)
    await run(engine, request("Say:", temperature=0.0, repetition_penalty=1.1, seed=4, max_tokens=5))
    await run(engine, request((67, 68)))
    history = (
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c", "name": "f", "content": "2"},
    )
    await run(engine, request(ChatPrompt(messages=history), grammar=Grammar("json_schema", '{"type": "object"}')))
    (path, first), (_, second), (chat_path, third) = backend.posted
    assert (path, first["prompt"], first["raw"], first["truncate"]) == ("/api/generate", "Say:", True, False)
    assert first["options"] == {
        "num_ctx": 1000, "num_predict": 5, "temperature": 0.0, "repeat_penalty": 1.1, "repeat_last_n": -1, "seed": 4,
    }  # fmt: skip
    assert second["prompt"] == prompts.tokenizer.decode((67, 68))
    assert chat_path == "/api/chat"
    assert third["messages"][0] == {"role": "user", "content": "ab"}
    assert third["messages"][1]["tool_calls"] == [{"function": {"name": "f", "arguments": {"x": 1}}}]
    assert third["messages"][2] == {"role": "tool", "content": "2", "tool_name": "f"}
    assert third["format"] == {"type": "object"}
    assert "num_predict" not in third["options"]


async def test_token_ids_need_a_tokenizer() -> None:
    engine = make_engine(OllamaDialect(), CutBackend([b""]), None)
    assert not engine.capabilities.tokenize
    for call in (run(engine, request((1, 2))), engine.tokenize("a"), engine.detokenize((1,)), run(engine, request(""))):
        with pytest.raises(InvalidRequestError):
            await call


async def test_only_schemas_constrain() -> None:
    with pytest.raises(InvalidRequestError, match="JSON schemas only"):
        await run(make_engine(OllamaDialect(), CutBackend([b""]), None), request(grammar=Grammar("regex", "a")))


@pytest.mark.parametrize(("name", "there"), [("m:latest", True), ("m", True), ("other", False)])
async def test_the_model_must_be_there(name: str, there: bool) -> None:
    replies = {"/api/version": json_reply({"version": "0.9"}), "/api/tags": json_reply({"models": [{"name": name}]})}
    async with replaying(replies) as server:
        engine = make_engine(OllamaDialect(), HttpBackend("ollama-native", server.url), None)
        if there:
            await engine.start()
            assert (await engine.health()).ready
        else:
            with pytest.raises(ConfigError, match="it has other"):
                await engine.start()
        await engine.stop(0)
