"""What `engine: openvino` decides before a process is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_inference.adapters.library import openvino
from llm_inference.adapters.library.openvino import PROFILE, num_kv_blocks, split_arguments, translate
from llm_inference.adapters.library.openvino_model import IR_FILE, OpenVINOModel, find_model, target_type
from llm_inference.adapters.library.plan import refuse_other_keys
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import GenerateRequest, SamplingParams
from llm_inference.errors import ConfigError, InvalidRequestError, UnsupportedModelError
from tests.adapters.library.test_onnx import write_config


def model(**more: Any) -> ModelConfig:
    return ModelConfig.model_validate({"name": "m", "model": "m.gguf", "engine": "openvino", **more})


def check(**sampling: Any) -> None:
    params = SamplingParams(**sampling)
    translate(GenerateRequest(request_id="r", model="m", prompt="x", sampling=params), params)


@pytest.mark.parametrize(
    ("found", "wanted", "target"),
    [
        ("F16", None, None),
        ("Q8_0", None, None),
        ("Q4_1", None, "F16"),
        ("Q6_K", None, "F16"),
        ("F32", None, "F16"),
        ("Q8_0", "int8", None),
        ("Q4_1", "int8", "Q8_0"),
        ("Q4_1", "int4", None),
        ("F16", "int4", "Q4_0"),
    ],
)
def test_weights_are_written_anew_only_where_it_matters(found: str, wanted: str | None, target: str | None) -> None:
    assert target_type(found, wanted) == target


def test_a_model_of_its_own_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / IR_FILE).touch()
    found = find_model(model(model=str(tmp_path)))
    assert (found.path, found.weights) == (tmp_path.resolve(), "exported")
    with pytest.raises(ConfigError, match="quantization"):
        find_model(model(model=str(tmp_path), quantization="int8"))


def test_quantizations_that_it_has_not() -> None:
    with pytest.raises(UnsupportedModelError, match="int8 and int4"):
        find_model(model(quantization="awq"))


def test_arguments() -> None:
    scheduler, properties = split_arguments({"program": "p", "dynamic_split_fuse": False, "KV_CACHE_PRECISION": "u8"})
    assert scheduler == {"dynamic_split_fuse": False}
    assert properties == {"KV_CACHE_PRECISION": "u8"}
    with pytest.raises(ConfigError, match=r"engine_args\.x"):
        split_arguments({"x": [1]})


def test_keys_without_effect() -> None:
    for more in ({"tensor_parallel_size": 2}, {"device": "cuda"}, {"compile": True}):
        with pytest.raises(ConfigError, match=next(iter(more))):
            refuse_other_keys(model(**more), "openvino")
    with pytest.raises(ConfigError, match="enable_prefix_caching"):
        refuse_other_keys(model(enable_prefix_caching=False), "onnx")
    refuse_other_keys(model(enable_prefix_caching=False), "openvino", ("enable_prefix_caching",))


def test_the_cache_holds_a_context_at_least(tmp_path: Path) -> None:
    write_config(tmp_path)  # 2 layers, 2 heads of keys, 8 wide
    found = OpenVINOModel(tmp_path / "m.gguf", tmp_path, "F16")
    per_block = 2 * 2 * 2 * 10 * openvino.BLOCK_SIZE
    assert num_kv_blocks(model(kv_cache_memory=per_block * 9), found, 256, 4) == 9
    assert num_kv_blocks(model(), found, 256, 4) == 4 * 9, "no more than all sequences need"
    with pytest.raises(ConfigError, match="kv_cache_memory"):
        num_kv_blocks(model(kv_cache_memory=per_block * 8), found, 256, 4)
    exact = 2 * 2 * 2 * 32 * openvino.BLOCK_SIZE
    assert num_kv_blocks(model(kv_cache_memory=exact * 9, dtype="float32"), found, 256, 4) == 9


def test_log_probabilities_of_others_are_not_made_up() -> None:
    check(logprobs=0, temperature=1.0)
    check(logprobs=1, temperature=0.0)
    for more in ({"logprobs": 1, "temperature": 1.0}, {"logprobs": 2, "temperature": 0.0}):
        with pytest.raises(InvalidRequestError, match="log-probability"):
            check(**more)
    with pytest.raises(InvalidRequestError, match="log-probability"):
        check(logprobs=1, temperature=0.0, repetition_penalty=2.0)


@pytest.mark.parametrize("more", [{"n": 3}, {"temperature": 1.0}, {"seed": 1}, {"logprobs": 0}, {"ignore_eos": True}])
def test_what_does_not_go_with_beams(more: dict[str, Any]) -> None:
    check(num_beams=2, n=2)
    with pytest.raises(InvalidRequestError) as caught:
        check(num_beams=2, **more)
    assert caught.value.param == next(iter(more))


def test_min_tokens_beside_ignore_eos() -> None:
    check(min_tokens=2, ignore_eos=True)
    with pytest.raises(InvalidRequestError, match="min_tokens"):
        check(min_tokens=2, ignore_eos=True, stop_token_ids=(5,))


def test_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_INFERENCE_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match=r"not installed.*engines install openvino"):
        openvino.create(model(), EngineContext(run_dir=tmp_path))


def test_the_table() -> None:
    assert PROFILE.capabilities.tokenize
    assert PROFILE.capabilities.support("seed") == "enforced"
    assert PROFILE.capabilities.support("logit_bias") == "refused"
