"""A model's sizes against the native plan that would really be made, and against sums by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_inference.config.schema import ModelConfig
from llm_inference.deploy.choices import Choices
from llm_inference.errors import ConfigError
from llm_inference.model_spec import ModelSpec
from llm_inference.native.budget import DEFAULT_CPU_KV_BYTES
from llm_inference.native.plan import make_plan, memory_needs
from llm_inference.tools.footprint import measure

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
NO_CHOICE = Choices()


@pytest.fixture
def info(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    return tmp_path


def with_config(folder: Path, **more: object) -> Path:
    (folder / "config.json").write_text(json.dumps(LLAMA_8B | more))
    return folder


def test_the_default_model_as_the_native_plan_has_it(default_model_dir: Path) -> None:
    model = ModelConfig(kv_cache_memory=2**30)
    found = measure(model, NO_CHOICE)
    plan = make_plan(model, progress=False)
    spec = ModelSpec.from_directory(Path(plan.setup.model_dir))
    needs = memory_needs(spec, plan.setup.precision, plan.setup.quantization, plan.setup.max_num_batched_tokens)
    assert (found.engine, found.place) == ("native", "cpu")
    assert found.weight_bytes >= needs.weight_bytes
    assert found.workspace_bytes == needs.workspace_bytes
    assert found.kv_bytes == plan.setup.kv_cache_bytes == 2**30
    assert found.least_kv_bytes == 8192 * needs.kv_bytes_per_token
    assert found.disk_bytes > found.download_bytes > 80 * 2**20
    assert found.local_path is None


def test_the_cache_is_what_a_cpu_would_take_by_itself(default_model_dir: Path) -> None:
    assert measure(ModelConfig(), NO_CHOICE).kv_bytes <= DEFAULT_CPU_KV_BYTES
    few = measure(ModelConfig(max_num_seqs=2, max_model_len=1024), NO_CHOICE)
    assert few.kv_bytes == 2 * 1024 * 46080


def test_a_cache_that_holds_no_sequence_is_refused(default_model_dir: Path) -> None:
    from llm_inference.errors import OutOfMemoryError

    with pytest.raises(OutOfMemoryError, match="kv_cache_memory is 1"):
        measure(ModelConfig(kv_cache_memory=2**20), NO_CHOICE)


def test_an_unknown_cpu_may_have_to_compute_in_float32(info: Path) -> None:
    found = measure(ModelConfig(model="org/m"), NO_CHOICE, info)
    assert found.weight_bytes >= 8_030_261_248 * 4
    assert "float32" in found.sizes_why


def test_a_directory_is_mounted_and_not_fetched(default_model_dir: Path) -> None:
    found = measure(ModelConfig(model=str(default_model_dir)), NO_CHOICE)
    assert found.local_path == str(default_model_dir.resolve())
    assert found.download_bytes == 0


def test_a_hub_model_that_is_not_here_needs_its_shapes() -> None:
    with pytest.raises(ConfigError, match=r"its size is not known; give a directory .* --model-info m=DIRECTORY"):
        measure(ModelConfig(name="m", model="no-such-org/no-such-model"), NO_CHOICE)


def test_a_name_that_is_none_of_the_hub() -> None:
    with pytest.raises(ConfigError, match="its size is not known"):
        measure(ModelConfig(name="m", model="a b/c/d"), NO_CHOICE)


def test_info_must_hold_a_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        measure(ModelConfig(model="m"), NO_CHOICE, tmp_path)


def test_awq_goes_to_vllm_with_about_its_real_size(tmp_path: Path) -> None:
    folder = with_config(tmp_path, quantization_config={"quant_method": "awq", "bits": 4})
    found = measure(ModelConfig(model="org/m", quantization="awq", max_model_len=8192), NO_CHOICE, folder)
    assert (found.engine, found.place) == ("vllm", "cuda")
    assert "quantized with awq" in found.engine_why
    # The published AWQ checkpoints of this shape take 5.73 GB.
    assert found.weight_bytes == pytest.approx(5.73e9, rel=0.05)
    assert found.least_kv_bytes == 8192 * 2 * 32 * 8 * 128 * 2


def test_sixteen_bits_by_the_shapes(info: Path) -> None:
    found = measure(ModelConfig(model="org/m", engine="vllm"), NO_CHOICE, info)
    assert found.weight_bytes == 8_030_261_248 * 2


@pytest.mark.parametrize(
    ("said", "engine"),
    [({"tensor_parallel_size": 2}, "vllm"), ({"quantization": "fp8"}, "vllm"), ({"quantization": "int8"}, "native")],
)
def test_engines_that_auto_means(said: dict[str, object], engine: str, info: Path) -> None:
    assert measure(ModelConfig.model_validate({"model": "org/m", **said}), NO_CHOICE, info).engine == engine


@pytest.mark.parametrize(
    ("said", "choices", "place"),
    [
        ({}, Choices(), "cpu"),
        ({}, Choices(device="cuda"), "cuda"),
        ({"device": "cuda:1"}, Choices(device="cpu"), "cuda"),
        ({"device": "cpu"}, Choices(device="cuda"), "cpu"),
        ({"engine": "vllm"}, Choices(), "cuda"),
        ({"engine": "vllm"}, Choices(device="cpu"), "cpu"),
        ({"engine": "llama.cpp"}, Choices(device="cuda"), "cpu"),
    ],
)
def test_places(said: dict[str, object], choices: Choices, place: str, info: Path) -> None:
    assert measure(ModelConfig.model_validate({"model": "org/m", **said}), choices, info).place == place


def test_remote_and_fake_need_nothing() -> None:
    remote = measure(ModelConfig(model="m", url="http://10.0.0.5:8001"), NO_CHOICE)
    assert (remote.place, remote.weight_bytes) == ("remote", 0)
    assert measure(ModelConfig(model="m", engine="fake"), NO_CHOICE).weight_bytes == 0


def test_a_template_that_is_a_file_comes_along(tmp_path: Path, info: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}")
    assert measure(ModelConfig(model="m", engine="fake", chat_template=str(file)), NO_CHOICE).chat_template == (
        "{{ messages }}"
    )
    for text in ("{{ messages }}", "tool_use"):
        assert measure(ModelConfig(model="m", engine="fake", chat_template=text), NO_CHOICE).chat_template is None
