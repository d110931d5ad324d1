"""What `engine: onnx` decides before a process is started."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_inference.adapters.library import onnx
from llm_inference.adapters.library.onnx import PROFILE, kv_cache_tokens, translate
from llm_inference.adapters.library.onnx_model import CONFIG_FILE, ONNXModel, convert, find_model, precision_of
from llm_inference.adapters.library.wire import Grammar as WorkerGrammar
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import GenerateRequest, Grammar, SamplingParams
from llm_inference.errors import ConfigError, InvalidRequestError, StartupError, UnsupportedModelError


def write_config(directory: Path) -> None:
    """Of a model of two layers with two heads of keys, eight wide."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "vocab_size": 100,
        "torch_dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config))


def model(**more: Any) -> ModelConfig:
    return ModelConfig.model_validate({"name": "m", "model": "somewhere", "engine": "onnx", **more})


def translated(grammar: Grammar | None, **sampling: Any) -> WorkerGrammar | None:
    params = SamplingParams(grammar=grammar, **sampling)
    return translate(GenerateRequest(request_id="r", model="m", prompt="x", sampling=params), params)


@pytest.mark.parametrize(
    ("said", "precision"),
    [({}, "fp32"), ({"dtype": "float32"}, "fp32"), ({"precision": "int4"}, "int4"), ({"quantization": "int8"}, "int8")],
)
def test_precision(said: dict[str, Any], precision: str) -> None:
    assert precision_of(model(**said)) == precision


def test_precisions_that_it_has_not() -> None:
    with pytest.raises(ConfigError, match="bfloat16"):
        precision_of(model(dtype="bfloat16"))
    with pytest.raises(UnsupportedModelError, match="gptq"):
        precision_of(model(quantization="gptq"))


def test_a_model_of_its_own_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / CONFIG_FILE).touch()
    assert find_model(model(model=str(tmp_path)), Path(sys.executable), "1").path == tmp_path.resolve()
    with pytest.raises(ConfigError, match="quantization"):
        find_model(model(model=str(tmp_path), quantization="int4"), Path(sys.executable), "1")


def test_a_builder_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"cannot convert.*\n.*onnxruntime_genai"):
        convert(Path(sys.executable), tmp_path, tmp_path, "fp32")


def test_grammars_in_its_words() -> None:
    assert translated(None) is None
    assert translated(Grammar("json_object", "")) == WorkerGrammar("json_schema", '{"type": "object"}')
    assert translated(Grammar("json_schema", "{}")) == WorkerGrammar("json_schema", "{}")
    assert translated(Grammar("regex", "a+")) == WorkerGrammar("regex", "a+")
    assert translated(Grammar("choice", '["a.b", "c"]')) == WorkerGrammar("regex", r"(a\.b|c)")
    assert translated(Grammar("grammar", "start: x")) == WorkerGrammar("lark_grammar", "start: x")
    with pytest.raises(InvalidRequestError, match="characters"):
        translated(Grammar("regex", "a" * 100_000))


@pytest.mark.parametrize(
    "more",
    [{"logprobs": 0}, {"min_p": 0.1}, {"presence_penalty": 1.0}, {"logit_bias": {1: 1.0}}, {"min_tokens": 1}],
)
def test_what_does_not_go_with_a_grammar(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        translated(Grammar("regex", "a"), **more)
    assert caught.value.param == next(iter(more))


def test_the_cache_holds_a_context_at_least(tmp_path: Path) -> None:
    write_config(tmp_path)
    found = ONNXModel(tmp_path, tmp_path, "fp32")
    per_token = 2 * 2 * 2 * 8 * 4
    assert kv_cache_tokens(model(kv_cache_memory=per_token * 300), found, 256) == 300
    assert kv_cache_tokens(model(), found, 256) == 2**30 // per_token
    with pytest.raises(ConfigError, match="kv_cache_memory"):
        kv_cache_tokens(model(kv_cache_memory=per_token * 255), found, 256)


def test_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_INFERENCE_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"not installed.*engines install onnx"):
        onnx.create(model(), EngineContext(run_dir=tmp_path))


def test_the_table() -> None:
    assert PROFILE.capabilities.support("logit_bias") == "emulated"
    assert PROFILE.capabilities.support("num_beams") == "refused"
