from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_inference.adapters.generate_http import HttpBackend
from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.adapters.mii import MIIDialect
from llm_inference.engine.types import Usage
from llm_inference.errors import EngineError, InvalidRequestError
from tests.adapters.generate_model import make_engine
from tests.adapters.replay import CutBackend, Reply, chat, json_reply, outcome, replaying, request, run, usage_of

#: The form that its facts tell; no recorded reply of it is known.
RESULT = {"generated_text": " It is maths.", "prompt_length": 5, "generated_length": 4, "finish_reason": "stop"}


@pytest.mark.parametrize(
    "reply",
    [
        [RESULT],
        json.dumps([RESULT]),  # JSON text inside a JSON string, as its REST gateway has it
        [{**RESULT, "generated_text": [RESULT["generated_text"]]}],
    ],
)
async def test_a_reply_is_one_delta(prompts: PromptSide, reply: Any) -> None:
    backend = CutBackend([json.dumps(reply).encode()], content_type="application/json")
    deltas = await run(make_engine(MIIDialect({}), backend, prompts), request())
    assert len(deltas) == 1
    assert (outcome(deltas).text, outcome(deltas).finish_reason) == (" It is maths.", "stop")
    assert usage_of(deltas) == Usage(prompt_tokens=5, completion_tokens=4)


@pytest.mark.parametrize(("reported", "reason"), [("length", "length"), ("none", "length"), (None, "length")])
async def test_other_finish_reasons(prompts: PromptSide, reported: str | None, reason: str) -> None:
    backend = CutBackend(
        [json.dumps([{**RESULT, "finish_reason": reported}]).encode()], content_type="application/json"
    )
    deltas = await run(make_engine(MIIDialect({}), backend, prompts), request(max_tokens=4))
    assert outcome(deltas).finish_reason == reason


async def test_stop_strings_and_counts_are_ours_where_it_has_none(prompts: PromptSide) -> None:
    backend = CutBackend([json.dumps([{"generated_text": " It is maths."}]).encode()], content_type="application/json")
    deltas = await run(make_engine(MIIDialect({}), backend, prompts), request("Hi", stop=(" maths",)))
    assert (outcome(deltas).text, outcome(deltas).stop_reason) == (" It is", " maths")
    assert usage_of(deltas) == Usage(prompt_tokens=3, completion_tokens=len(" It is maths."))


async def test_n_is_as_many_calls(prompts: PromptSide) -> None:
    bodies = [[json.dumps([{**RESULT, "generated_text": text}]).encode()] for text in ("a", "b", "c")]
    backend = CutBackend(*bodies, content_type="application/json")
    deltas = await run(make_engine(MIIDialect({}), backend, prompts), request(n=3))
    assert sorted(outcome(deltas, index).text for index in range(3)) == ["a", "b", "c"]
    assert usage_of(deltas) == Usage(prompt_tokens=5, completion_tokens=12)
    assert len(backend.posted) == 3


async def test_what_it_is_asked(prompts: PromptSide) -> None:
    backend = CutBackend([json.dumps([RESULT]).encode()], content_type="application/json")
    engine = make_engine(MIIDialect({"deployment": "my llm"}), backend, prompts)
    await run(engine, request(chat("Hi"), temperature=0.0, stop=("x",), max_tokens=7, ignore_eos=True))
    await run(engine, request(temperature=0.5, top_k=0, min_tokens=1))
    (path, first), (_, second) = backend.posted
    assert path == "/mii/my%20llm"
    assert first["prompts"] == ["[user]Hi[a]"]
    assert (first["max_new_tokens"], first["max_length"], first["do_sample"]) == (7, 1000, False)
    assert (first["stop"], first["ignore_eos"], first["return_full_text"]) == (["x"], True, False)
    assert (second["temperature"], second["top_p"], second["min_new_tokens"]) == (0.5, 1.0, 1)
    assert "top_k" not in second


async def test_the_gateway_answers_or_does_not(shared_dir: Path, prompts: PromptSide) -> None:
    error = json.loads((shared_dir / "fixtures" / "deepspeed_mii" / "001_api_server_py_L43.json").read_text())
    replies = {"/mii/m": [json_reply(error, 400), Reply(b"<h1>Internal Server Error</h1>", 500), json_reply(error)]}
    async with replaying(replies) as server:
        engine = make_engine(MIIDialect({}), HttpBackend("mii", server.url), prompts)
        await engine.start()  # 404 of a path that it has not: somebody is there
        assert (await engine.health()).ready
        with pytest.raises(InvalidRequestError, match="Prompt is required"):
            await run(engine, request())
        with pytest.raises(EngineError, match="Internal Server Error"):
            await run(engine, request())
        with pytest.raises(EngineError, match="Prompt is required"):
            await run(engine, request())
        await engine.stop(0)


@pytest.mark.parametrize("reply", [[], [{}], "[nonsense", 5])
async def test_replies_of_no_known_form(prompts: PromptSide, reply: Any) -> None:
    backend = CutBackend([json.dumps(reply).encode()], content_type="application/json")
    with pytest.raises(EngineError, match="no known form"):
        await run(make_engine(MIIDialect({}), backend, prompts), request())
