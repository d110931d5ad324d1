"""Tool calls and reasoning of engines that give text alone: read out of it, and forced by constraining the output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.adapters.lightllm import LightLLMDialect
from llm_inference.adapters.mii import MIIDialect
from llm_inference.adapters.tgi_generate import TGIDialect
from llm_inference.engine.types import ChatPrompt, Delta, GenerateRequest, Grammar, SamplingParams
from llm_inference.errors import InvalidRequestError
from tests.adapters.generate_model import THINK_TEMPLATE, TOOL_TEMPLATE, configuration, make_engine, write_tokenizer
from tests.adapters.replay import CutBackend, one_cut, outcome, run, usage_of
from tests.text.parsers.reading import Reading, tool

WEATHER = tool("get_weather", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Z\u00fcrich"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> PromptSide:
    directory = write_tokenizer(tmp_path_factory.mktemp("tools") / "m", template=TOOL_TEMPLATE)
    return PromptSide.load(configuration(directory, None, "lightllm"))


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> PromptSide:
    directory = write_tokenizer(tmp_path_factory.mktemp("think") / "m", template=THINK_TEMPLATE)
    return PromptSide.load(configuration(directory, None, "lightllm"))


def stream(text: str, reason: str = "stop") -> bytes:
    """LightLLM's events, one for each character."""
    last = len(text) - 1
    return b"".join(
        b"data:" + json.dumps(
            {
                "token": {"text": char, "prompt_tokens": 4, "count_output_tokens": place + 1},
                "finished": place == last,
                "finish_reason": reason if place == last else None,
            }
        ).encode() + b"\n\n"
        for place, char in enumerate(text)
    )  # fmt: skip


def ask(*given: Any, choice: Any = None, parallel: bool = True, **sampling: Any) -> GenerateRequest:
    prompt = ChatPrompt(messages=({"role": "user", "content": "Hi"},), tools=given)
    params = SamplingParams(**sampling)
    return GenerateRequest(
        request_id="r", model="m", prompt=prompt, sampling=params, tool_choice=choice, parallel_tool_calls=parallel
    )


def reading(deltas: list[Delta]) -> Reading:
    """What a client has of the calls."""
    found = Reading()
    for call in (call for delta in deltas for call in delta.tool_calls):
        if call.name is not None:
            found.names.append(call.name)
            found.arguments.append("")
        found.arguments[call.index] += call.arguments
    return found


async def test_a_call_in_a_stream_cut_at_every_byte(tools: PromptSide) -> None:
    for cut in one_cut(stream("So: " + CALL)):
        engine = make_engine(LightLLMDialect(), CutBackend(cut), tools)
        deltas = await run(engine, ask(WEATHER))
        assert outcome(deltas).text == "So: "
        assert outcome(deltas).finish_reason == "tool_calls"
        assert (reading(deltas).names, reading(deltas).arguments) == (["get_weather"], ['{"city": "Z\u00fcrich"}'])
    assert len([delta for delta in deltas if delta.tool_calls]) > 2, "in fragments"


async def test_the_template_shows_the_tools_that_may_be_called(tools: PromptSide) -> None:
    backend = CutBackend([stream("no")])
    engine = make_engine(LightLLMDialect(), backend, tools)
    deltas = await run(engine, ask(WEATHER))
    assert (outcome(deltas).text, outcome(deltas).finish_reason) == ("no", "stop")
    await run(engine, ask(WEATHER, choice="none"))
    shown, hidden = (body["inputs"] for _, body in backend.posted)
    assert "[tool]get_weather" in shown
    assert "[tool]" not in hidden


async def test_without_parallel_calls_the_first_ends_the_work(tools: PromptSide) -> None:
    engine = make_engine(LightLLMDialect(), CutBackend([stream(CALL + "\n" + CALL)]), tools)
    deltas = await run(engine, ask(WEATHER, parallel=False))
    assert reading(deltas).names == ["get_weather"]
    assert outcome(deltas).finish_reason == "tool_calls"
    assert reading(await run(engine, ask(WEATHER))).names == ["get_weather"] * 2


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
async def test_a_forced_call_is_a_constrained_output(prompts: PromptSide, choice: Any) -> None:
    """Also of a model whose template shows no tools."""
    backend = CutBackend([stream('{"name": "get_weather", "arguments": {"city": "Rome"}}')])
    deltas = await run(make_engine(LightLLMDialect(), backend, prompts), ask(WEATHER, choice=choice))
    assert (reading(deltas).names, reading(deltas).arguments) == (["get_weather"], ['{"city": "Rome"}'])
    assert (outcome(deltas).text, outcome(deltas).finish_reason) == ("", "tool_calls")
    schema = json.loads(backend.posted[0][1]["parameters"]["guided_json"])
    assert schema["properties"]["name"] == {"const": "get_weather"}
    assert schema["properties"]["arguments"] == WEATHER["function"]["parameters"]


async def test_what_is_refused(tools: PromptSide, prompts: PromptSide, tmp_path: Path) -> None:
    """Nothing of it reaches the server."""
    backend = CutBackend([b""])
    engine, plain = make_engine(LightLLMDialect(), backend, tools), make_engine(LightLLMDialect(), backend, prompts)
    free = make_engine(MIIDialect({}), backend, tools)
    grammar = Grammar("json_object", "")
    for asked, request, param in (
        (plain, ask(WEATHER), "tools"),
        (free, ask(WEATHER, choice="required"), "tool_choice"),
        (engine, ask(WEATHER, choice="required", grammar=grammar), "tool_choice"),
        (engine, ask(WEATHER, choice={"type": "function", "function": {"name": "f"}}), "tool_choice"),
        (engine, ask(tool("f", parameters=7), choice="required"), "tools"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidRequestError) as caught:
            await run(asked, request)
        assert caught.value.param == param
    assert not backend.posted
    assert free.capabilities.support("tools") == "emulated"
    assert free.capabilities.support("tool_choice") == "refused"
    assert engine.capabilities.support("tool_choice") == "emulated"


async def test_reasoning_before_the_answer_and_the_call(thinking: PromptSide) -> None:
    engine = make_engine(LightLLMDialect(), CutBackend([stream("Hm.</think>\n\nSo: " + CALL)]), thinking)
    deltas = await run(engine, ask(WEATHER))
    assert "".join(delta.reasoning for delta in deltas).strip() == "Hm."
    assert (outcome(deltas).text, reading(deltas).names) == ("So: ", ["get_weather"])
    assert usage_of(deltas).reasoning_tokens == 3
    assert usage_of(deltas).completion_tokens > 3


async def test_markers_that_are_special_tokens(tmp_path: Path) -> None:
    """They must reach us: asked for where the server can be, refused where it always leaves them out."""
    directory = write_tokenizer(tmp_path / "m", template=TOOL_TEMPLATE)
    backend = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    backend.add_special_tokens(["<tool_call>", "</tool_call>"])
    backend.save(str(directory / "tokenizer.json"))
    side = PromptSide.load(configuration(directory, None, "lightllm"))
    server = CutBackend([stream(CALL)])
    deltas = await run(make_engine(LightLLMDialect(), server, side), ask(WEATHER))
    assert reading(deltas).names == ["get_weather"]
    assert server.posted[0][1]["parameters"]["skip_special_tokens"] is False
    with pytest.raises(InvalidRequestError, match="special tokens"):
        await run(make_engine(TGIDialect(), server, side), ask(WEATHER))
