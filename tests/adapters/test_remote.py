from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_inference.adapters.generate_api import GenerateAPIEngine
from llm_inference.adapters.remote import command_line
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import EngineContext, engine_factory
from llm_inference.errors import ConfigError
from tests.adapters.generate_model import configuration
from tests.adapters.replay import chat, event_stream, json_reply, outcome, replaying, request, run

NAMES = ("lightllm", "triton", "mii", "tgi-generate", "sglang-generate", "ollama-native")
CONTEXT = EngineContext(run_dir=Path("/nowhere"), progress=False)


def create(model: ModelConfig) -> GenerateAPIEngine:
    engine = engine_factory(model.engine)(model, CONTEXT)
    assert isinstance(engine, GenerateAPIEngine)
    return engine


@pytest.mark.parametrize("name", NAMES)
def test_every_engine_is_found_by_its_name(tokenizer_dir: Path, name: str) -> None:
    engine = create(configuration(tokenizer_dir, "http://127.0.0.1:1", name, api_key="k", aliases=["x"]))
    assert (engine.info.engine, engine.info.name, engine.info.max_model_len) == (name, "m", 1000)
    assert engine.capabilities.support("n") == "emulated"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lightllm", ["lightllm.server.api_server", "--tp 2", "--max_req_total_len 1000", "--running_max_req_size 8"]),
        ("tgi-generate", ["text-generation-launcher", "--num-shard 2", "--max-total-tokens 1000"]),
        ("sglang-generate", ["sglang.launch_server", "--tp 2", "--context-length 1000", "--max-running-requests 8"]),
        ("triton", ["tritonserver --model-repository"]),
        ("mii", ["tensor_parallel=2", "enable_restful_api=True"]),
        ("ollama-native", ["ollama pull"]),
    ],
)
def test_without_url_it_says_how_to_start_the_engine(tokenizer_dir: Path, name: str, words: list[str]) -> None:
    model = configuration(tokenizer_dir, None, name, tensor_parallel_size=2, max_num_seqs=8)
    with pytest.raises(ConfigError, match="url: the engine") as caught:
        create(model)
    for word in (*words, str(tokenizer_dir) if name not in ("triton",) else "model"):
        assert word in caught.value.message


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size: has no effect"),
        ({"quantization": "awq"}, "quantization: has no effect"),
        ({"enable_prefix_caching": False}, "enable_prefix_caching: has no effect"),
        ({"tool_parser": "hermse"}, "did you mean 'hermes'|Did you mean 'hermes'"),
        ({"engine_args": {"straem": True}}, "did you mean stream"),
        ({"engine_args": {"x": True}}, "known here: accumulate_tokens, stream"),
        ({"engine_args": {"stream": "no"}}, "must be a bool"),
        ({"max_model_len": None}, "max_model_len: neither"),
    ],
)
def test_keys_without_effect(tokenizer_dir: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        create(configuration(tokenizer_dir, "http://127.0.0.1:1", "triton", **keys))


def test_parsers_beside_a_servers_own(tokenizer_dir: Path) -> None:
    with pytest.raises(ConfigError, match="finds tool calls and reasoning by itself"):
        create(configuration(tokenizer_dir, "http://127.0.0.1:1", "ollama-native", tool_parser="hermes"))


def test_more_than_the_model_was_made_for(tmp_path: Path, tokenizer_dir: Path) -> None:
    for file in tokenizer_dir.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512}')
    with pytest.raises(ConfigError, match="made for 512"):
        create(configuration(tmp_path, "http://127.0.0.1:1", "lightllm"))
    assert (
        create(configuration(tmp_path, "http://127.0.0.1:1", "lightllm", max_model_len=None)).info.max_model_len == 512
    )
    # Its context is as long as a request says, so the model's longest is not asked for.
    ollama = configuration(tmp_path, "http://127.0.0.1:1", "ollama-native", max_model_len=None, tokenizer=str(tmp_path))
    assert create(ollama).info.max_model_len == 4096


async def test_from_the_configuration_to_an_answer() -> None:
    line = b'{"message": {"content": "Hi"}, "done": true, "done_reason": "stop"}\n'
    replies = {
        "/api/version": json_reply({}),
        "/api/tags": json_reply({"models": []}, 404),
        "/api/chat": event_stream(line),
    }
    async with replaying(replies) as server:
        engine = create(
            ModelConfig(
                name="m",
                model="llama3.2",
                url=server.url,
                engine="ollama-native",
                api_key="k",
                generation={"top_p": 0.5},
            )
        )
        await engine.start()
        assert outcome(await run(engine, request(chat("Hello")))).text == "Hi"
        assert server.bodies("/api/chat")[0]["options"] == {"num_ctx": 4096, "top_p": 0.5}
        assert server.received[-1].headers["authorization"] == "Bearer k"
        await engine.stop(0)


async def test_streaming_can_be_switched_off(tokenizer_dir: Path) -> None:
    reply = json_reply({"text_output": "Hi"})
    replies = {
        "/v2/health/ready": json_reply(None),
        "/v2/models/e/config": json_reply({}, 500),
        "/v2/models/e/generate": reply,
    }
    async with replaying(replies) as server:
        engine = create(
            ModelConfig(
                name="m",
                model="e",
                url=server.url,
                engine="triton",
                tokenizer=str(tokenizer_dir),
                max_model_len=100,
                engine_args={"stream": False},
            )
        )
        await engine.start()
        assert outcome(await run(engine, request())).text == "Hi"
        await engine.stop(0)


def test_command_lines() -> None:
    flags = {"a": 1, "b-c": "x y", "d": True, "e": False, "f": None}
    assert command_line("run", flags) == "run --a 1 --b-c 'x y' --d"
