from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from llm_inference.adapters import sglang, vllm
from llm_inference.adapters.launch import (
    Launch,
    Plan,
    advise,
    check_flags,
    engine_flags,
    find_program,
    merge,
    read_help,
)
from llm_inference.adapters.profile import FIELDS, Profile
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import BUILT_IN
from llm_inference.errors import ConfigError

HELP = "usage: x [-h] [--port PORT] [--max-model-len N] [--ctx-size N, -c N] [--enable-x | --no-enable-x]"
MODULES = ("vllm", "sglang", "tgi", "llamacpp", "ollama", "tensorrt_llm", "transformers_serve", "lightllm_openai")


def test_engine_args_as_flags() -> None:
    arguments = {"a_b": 8, "on": True, "off": False, "many": [1, 2], "json": {"k": 1}, "-c": 3, "none": None, "env": {}}
    flags = ["--a-b", "8", "--on", "--no-off", "--many", "1", "2", "--json", '{"k":1}', "-c", "3"]
    assert engine_flags(arguments) == flags


def test_what_the_user_says_replaces_ours() -> None:
    ours = ["MODEL", "--port", "1", "--enable-x", "--max-model-len", "5"]
    assert merge(ours, ["--no-enable-x", "--max-model-len", "9"]) == [
        "MODEL", "--port", "1", "--no-enable-x", "--max-model-len", "9",
    ]  # fmt: skip


def test_a_flag_that_is_not_there_is_named_with_its_nearest() -> None:
    check_flags("e", ["/bin/x"], ["--port", "1", "-c", "-3", "--no-enable-x"], [], HELP)
    with pytest.raises(ConfigError, match=r"gives --max-model-length, .* that it has is --max-model-len"):
        check_flags("e", ["/bin/x"], ["--max-model-length", "3"], ["--max-model-length", "3"], HELP)
    with pytest.raises(ConfigError, match="our configuration needs --gone"):
        check_flags("e", ["/bin/x"], ["--gone"], [], HELP)


def test_help_of_an_installed_program(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "json.tool"]
    assert "--indent" in read_help(program, ("--nonsense", "--help"))
    with pytest.raises(ConfigError, match="last words"):
        read_help(program, ("--nonsense",))
    with pytest.raises(ConfigError, match="fails"):
        read_help([str(tmp_path / "absent")], ("--help",))


def test_finding_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Launch(
        program="no-such-engine", arguments=lambda plan: [], install="pip", modules=("m",), command=("serve",)
    )
    monkeypatch.setenv("LLM_INFERENCE_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"not installed.*pip.*engine_args\.program.*url"):
        find_program("e", launch, None)
    with pytest.raises(ConfigError, match=r"engine_args\.program"):
        find_program("e", launch, str(tmp_path / "absent"))
    assert find_program("e", launch, sys.executable) == ([sys.executable, "-m", "m"], True)
    venv = tmp_path / "engines" / "e" / "venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").symlink_to(sys.executable)
    assert find_program("e", launch, None) == ([str(venv / "python"), "-m", "m"], True)
    (venv / "no-such-engine").write_text("#!/bin/sh\n")
    (venv / "no-such-engine").chmod(0o755)
    assert find_program("e", launch, None) == ([str(venv / "no-such-engine"), "serve"], False)


def test_its_own_venv_goes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Launch(program="no-such-engine", arguments=lambda plan: [], install="pip", modules=("m",))
    monkeypatch.setenv("LLM_INFERENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    program = tmp_path / "no-such-engine"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_program("e", launch, None) == ([str(program)], False)
    venv = tmp_path / "cache" / "engines" / "e" / "venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").symlink_to(sys.executable)
    assert find_program("e", launch, None) == ([str(venv / "python"), "-m", "m"], True)


def test_vllm_has_the_parser_of_the_models_format(tmp_path: Path) -> None:
    def flags(**keys: Any) -> list[str]:
        return vllm.parser_flags(Plan(model=ModelConfig(model="m", **keys), source=str(tmp_path), port=1))

    auto = ["--enable-auto-tool-choice", "--tool-call-parser"]
    assert flags() == []
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}[TOOL_CALLS]")
    assert flags() == [*auto, "mistral"]
    assert flags(chat_template="{{ messages }}<|python_start|>") == [*auto, "pythonic"]
    assert flags(tool_parser="llama3_json") == [*auto, "llama3_json"]
    assert flags(tool_parser="none", reasoning_parser="qwen3") == ["--reasoning-parser", "qwen3"]


def test_vllm_keeps_float32_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "has_nvidia_gpu", lambda: False)

    def dtype(**keys: str) -> str:
        return vllm.dtype(Plan(model=ModelConfig(model="m", **keys), source=str(tmp_path), port=1))  # type: ignore[arg-type]

    assert dtype() == "auto"
    (tmp_path / "config.json").write_text('{"torch_dtype": "bfloat16"}')
    assert dtype() == "auto"
    (tmp_path / "config.json").write_text('{"torch_dtype": "float32"}')
    assert dtype() == "float32"
    assert dtype(dtype="bfloat16") == "bfloat16"
    monkeypatch.setattr(vllm, "has_nvidia_gpu", lambda: True)
    assert dtype() == "auto"


def test_advice_for_memory() -> None:
    assert "gpu_memory_utilization" in advise(vllm.LAUNCH, "ValueError: No available memory for the cache blocks.")
    assert "raise" in advise(sglang.LAUNCH, "Not enough memory. Please try to increase --mem-fraction-static.")
    assert "lower" in advise(sglang.LAUNCH, "torch.cuda.OutOfMemoryError: CUDA out of memory")
    assert advise(vllm.LAUNCH, "ImportError: x") == ""


@pytest.mark.parametrize("module", MODULES)
def test_our_configuration_becomes_its_flags(module: str) -> None:
    adapter = import_module(f"llm_inference.adapters.{module}")
    model = ModelConfig(name="n", model="m", engine="x", max_model_len=77, max_num_seqs=3, tensor_parallel_size=2)
    plan = Plan(model=model, source="/models/m", port=4321)
    argv = [str(item) for item in adapter.LAUNCH.arguments(plan)]
    told = [*argv, *adapter.LAUNCH.env(plan).values()]
    assert any("4321" in item for item in told), "the free port"
    assert any("127.0.0.1" in item for item in told)
    assert all(isinstance(item, str) for item in told)
    if module not in ("transformers_serve",):
        assert any(item in ("77", str(77 * 3)) for item in told)
    assert f"llm_inference.adapters.{module}:create" in BUILT_IN.values()


@pytest.mark.parametrize("module", [*MODULES, "openai"])
def test_every_field_has_a_word_and_every_refusal_a_reason(module: str) -> None:
    profile: Profile = import_module(f"llm_inference.adapters.{module}").PROFILE
    capabilities = profile.capabilities
    assert set(capabilities.fields) == set(FIELDS)
    refused = {name for name in FIELDS if capabilities.support(name) == "refused"}
    assert set(capabilities.reasons) == refused
    assert all(len(capabilities.reasons[name]) > 10 for name in refused)
    assert not refused & {"stop", "max_tokens", "temperature", "top_p", "n"}
    assert not re.search(r"[.;:]$", " ".join(capabilities.reasons.values()))


def test_the_fields_are_those_that_the_gateway_asks_about() -> None:
    from llm_inference.gateway.openai.sampling import NEUTRAL

    assert set(NEUTRAL) <= set(FIELDS)
