"""From a model's configuration to a plan, on the default model's real directory."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llm_inference.config.schema import ModelConfig
from llm_inference.errors import ConfigError, OutOfMemoryError, StartupError, UnsupportedModelError
from llm_inference.model_spec import ModelSpec
from llm_inference.native import plan as plan_module
from llm_inference.native.plan import NativePlan, compiled_weight_bytes, make_plan
from llm_inference.native.runner.choice import Machine

GIB = 2**30


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two CPUs, 8 GiB free, no GPU, no OpenVINO, whatever the test runs on."""
    has_openvino(monkeypatch, None)
    monkeypatch.setattr(plan_module, "available_memory_bytes", lambda: 8 * GIB)
    monkeypatch.setattr(plan_module, "available_cpus", lambda: 2)
    monkeypatch.setattr(plan_module, "has_nvidia_gpu", lambda: False)


def has_openvino(monkeypatch: pytest.MonkeyPatch, version: str | None, kernels: str | None = "no C compiler") -> None:
    machine = Machine("x86_64", frozenset({"avx2", "avx512f", "avx512_vnni"}), version, lambda: kernels)
    monkeypatch.setattr(Machine, "this", classmethod(lambda cls: machine))


@pytest.fixture
def changed(default_model_dir: Path, tmp_path: Path) -> Path:
    """The default model with files that a test may rewrite."""
    for file in default_model_dir.iterdir():
        if file.suffix == ".safetensors":
            (tmp_path / file.name).symlink_to(file)
        else:
            shutil.copy(file, tmp_path / file.name)
    return tmp_path


def plan(directory: Path, **options: Any) -> NativePlan:
    return make_plan(ModelConfig.model_validate({"model": str(directory), **options}), progress=False)


def rewrite(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**content, **changes}))


def test_defaults_on_a_cpu(default_model_dir: Path) -> None:
    result = plan(default_model_dir)
    setup = result.setup
    assert (setup.device, setup.precision, setup.quantization) == ("cpu", "float32", None)
    assert setup.max_model_len == 8192
    assert setup.num_threads == 2
    assert setup.num_valid_tokens == 49152
    # Keys and values of 30 layers, 3 heads of 64, in 4 bytes: 46,080 bytes a token.
    assert setup.num_kv_blocks == 4 * GIB // (16 * 46_080)
    assert result.info.max_batch_size == setup.max_num_seqs == 64
    assert result.core_env["OMP_NUM_THREADS"] == "2"


def test_the_runner_decides_the_block_size(
    default_model_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert plan(default_model_dir).setup.runner == "torch"
    assert "runner: torch, because the compiled runner is not to be had: no C compiler; the package" in caplog.text
    has_openvino(monkeypatch, "2026.4.1")
    setup = plan(default_model_dir).setup
    assert (setup.runner, setup.block_size) == ("openvino", 32)
    assert setup.num_kv_blocks == 4 * GIB // (32 * 46_080)
    assert "runner: openvino, because" in caplog.text
    for options in ({"runner": "torch"}, {"block_size": 16}, {"quantization": "int4"}):
        setup = plan(default_model_dir, **options).setup
        assert (setup.runner, setup.block_size) == ("torch", 16)
    has_openvino(monkeypatch, "2026.4.1", None)
    setup = plan(default_model_dir).setup
    assert (setup.runner, setup.block_size) == ("compiled", 32)
    assert setup.num_kv_blocks == 4 * GIB // (32 * 46_080)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantized_weights_get_the_compiled_runner(
    default_model_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, quantization: str
) -> None:
    caplog.set_level(logging.INFO)
    has_openvino(monkeypatch, "2026.4.1", None)
    setup = plan(default_model_dir, quantization=quantization).setup
    assert (setup.runner, setup.block_size) == ("compiled", 32)
    # Keys and values of 30 layers, 3 heads of 64 bytes and 8 of scale and minimum: 12,960 bytes a token.
    assert setup.num_kv_blocks == 4 * GIB // (32 * 12_960)
    assert "runner: compiled, because it is the fastest one" in caplog.text
    has_openvino(monkeypatch, None)
    assert plan(default_model_dir, quantization=quantization).setup.runner == "torch"
    assert "no C compiler" in caplog.text


def test_what_the_compiled_runner_packs_is_planned_for(default_model_dir: Path) -> None:
    """The default model's matrices by hand: 30 layers, and the end that is tied, with scales of two bytes."""
    spec = ModelSpec.from_directory(default_model_dir)
    layer = 576 * (576 + 2 * 192) + 576 * 576 + 3 * 576 * 1536
    ends = 49152 * 576
    for quantization, bits in (("int8", 8 + 2 * 8 / 64), ("int4", 4 + 4 * 8 / 32)):
        packed = (30 * layer * bits + ends * (8 + 2 * 8 / 64)) / 8
        assert packed <= compiled_weight_bytes(spec, quantization) <= 1.05 * packed


def test_the_format_of_the_cache_is_planned_for(default_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_openvino(monkeypatch, "2026.4.1")
    setup = plan(default_model_dir, kv_cache_dtype="int8").setup
    assert (setup.runner, setup.kv_cache_dtype) == ("openvino", "int8")
    assert setup.num_kv_blocks == 4 * GIB // (32 * 12_960)
    setup = plan(default_model_dir, kv_cache_dtype="float32", quantization="int8").setup
    assert setup.num_kv_blocks == 4 * GIB // (32 * 46_080)


def test_on_a_gpu_the_attention_decides_the_block_size(default_model_dir: Path) -> None:
    setup = plan(default_model_dir, device="cuda").setup
    assert (setup.runner, setup.block_size, setup.num_kv_blocks) == ("torch", None, None)
    assert (setup.attention, setup.cuda_graphs, setup.compile) == ("auto", "auto", False)
    options = {"attention": "sdpa", "cuda_graphs": False, "compile": True, "block_size": 32}
    setup = plan(default_model_dir, device="cuda", **options).setup
    assert (setup.attention, setup.cuda_graphs, setup.compile, setup.block_size) == ("sdpa", False, True, 32)


def test_what_is_configured_is_taken(default_model_dir: Path) -> None:
    result = plan(
        default_model_dir,
        max_model_len=1024,
        max_num_seqs=4,
        max_batch_size=3,
        block_size=32,
        kv_cache_memory="256MiB",
        enable_prefix_caching=False,
        precision="int8",
        generation={"temperature": 0.5},
    )
    setup = result.setup
    assert (setup.max_model_len, setup.max_num_seqs, setup.block_size) == (1024, 4, 32)
    assert setup.num_kv_blocks == 256 * 2**20 // (32 * 46_080)
    assert not setup.enable_prefix_caching
    assert (setup.precision, setup.quantization, result.info.precision) == ("float32", "int8", "int8")
    assert result.info.max_batch_size == 3
    assert result.defaults.temperature == 0.5


def test_generation_config_is_honoured_below_the_yaml(changed: Path) -> None:
    rewrite(
        changed / "generation_config.json",
        eos_token_id=[2, 0],
        do_sample=True,
        temperature=0.6,
        top_k=40,
        repetition_penalty=1.1,
        max_new_tokens=77,
    )
    result = plan(changed, generation={"temperature": 0.9, "presence_penalty": 0.5})
    assert set(result.setup.eos_token_ids) == {2, 0}
    defaults = result.defaults
    assert (defaults.temperature, defaults.top_k, defaults.repetition_penalty) == (0.9, 40, 1.1)
    assert (defaults.presence_penalty, defaults.max_tokens) == (0.5, 77)


def test_a_plan_survives_being_written_down(default_model_dir: Path) -> None:
    result = plan(default_model_dir)
    assert msgspec.json.decode(msgspec.json.encode(result), type=NativePlan) == result


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"tensor_parallel_size": 2}, ConfigError, "tensor_parallel_size"),
        ({"replicas": 2}, ConfigError, "replicas"),
        ({"engine_args": {"x": 1}}, ConfigError, "engine_args"),
        ({"attention": "flash_attn"}, ConfigError, "attention: flash_attn .* the device is cpu"),
        ({"cuda_graphs": True}, ConfigError, "cuda_graphs: true .* the device is cpu"),
        ({"runner": "openvino"}, ConfigError, "openvino 2026.4 is not installed"),
        ({"runner": "compiled"}, ConfigError, "no C compiler"),
        ({"runner": "compiled", "dtype": "float16"}, ConfigError, "is to be in float16"),
        ({"kv_cache_dtype": "int8"}, ConfigError, "kv_cache_dtype: int8 cannot be had"),
        ({"device": "tpu"}, ConfigError, "'tpu' is unknown"),
        ({"max_model_len": 10_000}, ConfigError, "at most 8192"),
        ({"quantization": "awq"}, UnsupportedModelError, "int8, int4"),
        ({"kv_cache_memory": "1MiB"}, OutOfMemoryError, "max_model_len to at most"),
        ({"kv_cache_memory": "9GiB"}, OutOfMemoryError, "can be used"),
        ({"tool_parser": "no-such"}, ConfigError, "no-such"),
    ],
)
def test_refusals(default_model_dir: Path, options: dict[str, Any], kind: type[StartupError], message: str) -> None:
    with pytest.raises(kind, match=message):
        plan(default_model_dir, **options).make_preparer()


def test_too_little_memory_says_what_would_fit(default_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "available_memory_bytes", lambda: 1000 * 2**20)
    with pytest.raises(OutOfMemoryError, match="max_model_len to at most") as caught:
        plan(default_model_dir)
    assert "for weights" in caught.value.message


def test_a_quantized_checkpoint_is_refused_with_what_can_serve_it(changed: Path) -> None:
    rewrite(changed / "config.json", quantization_config={"quant_method": "awq", "bits": 4})
    with pytest.raises(UnsupportedModelError, match=r"awq.*vllm"):
        plan(changed)


def test_a_model_without_eos_cannot_be_constrained(changed: Path) -> None:
    rewrite(changed / "config.json", eos_token_id=None)
    (changed / "generation_config.json").unlink(missing_ok=True)
    rewrite(changed / "tokenizer_config.json", eos_token=None)
    (changed / "special_tokens_map.json").unlink(missing_ok=True)
    assert plan(changed).make_preparer().grammars is None
