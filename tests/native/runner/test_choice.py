"""Which runner is taken, and that the reason says what to change."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from typing import Any

import pytest

from llm_inference.errors import ConfigError
from llm_inference.native.runner.choice import Machine, RunnerName, Wanted, choose_runner, runner_states

WANTED = Wanted(model_type="llama", head_dim=64, device="cpu", precision="float32", quantization=None, block_size=None)
FLAGS = frozenset({"avx2", "avx512f", "avx512_bf16", "avx512_vnni"})


def nothing_missing() -> None:
    return None


def no_compiler() -> str:
    return "there is no C compiler; install gcc"


MACHINE = Machine("x86_64", FLAGS, "2026.4.1", nothing_missing)


def test_auto_takes_openvino_where_the_compiled_runner_is_not_faster_or_not_there() -> None:
    older = replace(MACHINE, cpu_flags=frozenset({"avx2"}))
    choice = choose_runner("auto", WANTED, older)
    assert choice.name == "openvino"
    assert "openvino 2026.4.1 is installed" in choice.reason
    assert "without AVX-512" in choice.reason
    for can in ({"block_size": 32}, {"model_type": "qwen2"}, {"kv_cache_dtype": "int8"}):
        assert choose_runner("auto", replace(WANTED, **can), older).name == "openvino"
    assert choose_runner("auto", WANTED, replace(MACHINE, kernels=no_compiler)).name == "openvino"
    assert choose_runner("auto", replace(WANTED, precision="bfloat16"), MACHINE).name == "openvino"
    assert choose_runner("auto", replace(WANTED, head_dim=18), MACHINE).name == "openvino"
    arm = Machine("aarch64", frozenset(), "2026.4.0", nothing_missing)
    choice = choose_runner("auto", WANTED, arm)
    assert choice.name == "openvino"
    assert "measured on x86 alone, and this machine is aarch64" in choice.reason
    assert choose_runner("auto", replace(WANTED, quantization="int4"), arm).name == "torch"


def test_auto_takes_the_compiled_runner_for_float32() -> None:
    for can in ({}, {"block_size": 32}, {"model_type": "qwen2"}, {"kv_cache_dtype": "int8"}, {"head_dim": 80}):
        choice = choose_runner("auto", replace(WANTED, **can), replace(MACHINE, openvino=None))
        assert choice.name == "compiled"
        assert "the fastest one" in choice.reason


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_auto_takes_the_compiled_runner_for_quantized_weights(quantization: str) -> None:
    wanted = replace(WANTED, quantization=quantization)
    kept = ({"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "float32"})
    for can in ({}, {"precision": "bfloat16"}, {"block_size": 32}, *kept):
        choice = choose_runner("auto", replace(wanted, **can), MACHINE)
        assert choice.name == "compiled"
        assert "the fastest one" in choice.reason
    client = replace(MACHINE, cpu_flags=frozenset({"avx2", "avx_vnni"}), openvino=None)
    assert choose_runner("auto", wanted, client).name == "compiled"


@pytest.mark.parametrize(
    ("machine", "hint"),
    [({"kernels": no_compiler}, "install gcc"), ({"cpu_flags": frozenset({"avx2"})}, "does not multiply bytes")],
)
def test_without_the_kernels_the_next_one_is_taken_and_says_what_is_missing(machine: dict[str, Any], hint: str) -> None:
    wanted, where = replace(WANTED, quantization="int8"), replace(MACHINE, **machine)
    choice = choose_runner("auto", wanted, where)
    assert choice.name == "openvino"
    assert hint in choice.reason
    choice = choose_runner("auto", replace(wanted, quantization="int4"), where)
    if "kernels" in machine:
        assert choice.name == "torch"
        assert hint in choice.reason
        assert "openvino cannot quantize to int4" in choice.reason
    else:
        assert choice.name == "compiled"


def test_torch_is_taken_when_asked_for() -> None:
    assert choose_runner("torch", WANTED, MACHINE).name == "torch"
    assert choose_runner("torch", replace(WANTED, kv_cache_dtype="float32"), MACHINE).name == "torch"


def test_kernels_are_not_compiled_where_they_are_not_wanted() -> None:
    def refusing() -> str:
        raise AssertionError("asked for the kernels")

    machine = replace(MACHINE, kernels=refusing)
    assert choose_runner("auto", replace(WANTED, precision="bfloat16"), machine).name == "openvino"
    assert choose_runner("torch", replace(WANTED, quantization="int8"), machine).name == "torch"
    assert choose_runner("auto", replace(WANTED, quantization="int8", model_type="gpt2"), machine).name == "torch"
    narrow = replace(machine, cpu_flags=frozenset({"avx2"}))
    assert choose_runner("auto", WANTED, narrow).name == "openvino"
    assert choose_runner("auto", replace(WANTED, quantization="int8"), narrow).name == "openvino"
    assert choose_runner("auto", WANTED, replace(machine, architecture="aarch64")).name == "openvino"


@pytest.mark.parametrize(
    ("wanted", "machine", "reason"),
    [
        ({"device": "cuda:1"}, {}, "the device is cuda:1"),
        ({"model_type": "gpt2"}, {}, "type 'gpt2'"),
        ({}, {"openvino": None}, "2026.4 is not installed .*extra `cpu`"),
        ({}, {"openvino": "2025.3.0"}, "2025.3.0 is installed, and 2026.4 is needed"),
        ({}, {"openvino": "2026.40.0"}, "2026.40.0 is installed"),
        ({}, {"architecture": "riscv64"}, "this machine is riscv64"),
        ({}, {"cpu_flags": frozenset({"sse4_2"})}, "needs AVX2"),
        ({"quantization": "int4"}, {"kernels": no_compiler}, "cannot quantize to int4"),
        ({"precision": "bfloat16"}, {"cpu_flags": frozenset({"avx2"})}, "only on x86 CPUs that have it in hardware"),
        ({"precision": "float16"}, {}, "not in float16"),
        ({"block_size": 16}, {}, "block_size of 32, and 16 is configured"),
    ],
)
def test_obstacles_of_openvino(wanted: dict[str, Any], machine: dict[str, Any], reason: str) -> None:
    """Auto falls back and says why; asked for by name it is an error that says why."""
    what, where = replace(WANTED, **wanted), replace(MACHINE, **{"kernels": no_compiler, **machine})
    choice = choose_runner("auto", what, where)
    assert choice.name == "torch"
    with pytest.raises(
        ConfigError, match=f"runner: openvino cannot serve this: .*{reason}.*Set `runner: torch`"
    ) as raised:
        choose_runner("openvino", what, where)
    assert raised.value.message.partition("serve this: ")[2].partition(". Set")[0] in choice.reason


@pytest.mark.parametrize(
    ("wanted", "machine", "reason"),
    [
        ({"device": "cuda"}, {}, "the device is cuda"),
        ({"quantization": None, "precision": "bfloat16"}, {}, "in float32, int8 and int4, .* to be in bfloat16"),
        ({"model_type": "gpt2"}, {}, "type 'gpt2'"),
        ({"head_dim": 18}, {}, "a multiple of 4 up to 256 dimensions, and this model's are of 18"),
        ({"head_dim": 512}, {}, "this model's are of 512"),
        ({"precision": "float16"}, {}, "not in float16"),
        ({"block_size": 16}, {}, "block_size of 32, and 16 is configured"),
        ({}, {"kernels": no_compiler}, "there is no C compiler; install gcc"),
    ],
)
def test_obstacles_of_the_compiled_runner(wanted: dict[str, Any], machine: dict[str, Any], reason: str) -> None:
    what, where = replace(WANTED, **{"quantization": "int8", **wanted}), replace(MACHINE, **machine)
    with pytest.raises(ConfigError, match=f"runner: compiled cannot serve this: .*{reason}.*Set `runner: torch`"):
        choose_runner("compiled", what, where)
    assert choose_runner("auto", what, where).name != "compiled"


@pytest.mark.parametrize("quantization", ["int8", "int4", None])
def test_the_compiled_runner_by_name_runs_everywhere(quantization: str | None) -> None:
    plain = Machine("riscv64", frozenset(), None, nothing_missing)
    precision = "float32" if quantization is None else "bfloat16"
    wanted = replace(WANTED, quantization=quantization, precision=precision, block_size=32, kv_cache_dtype="int8")
    assert choose_runner("compiled", wanted, plain).name == "compiled"


@pytest.mark.parametrize(
    ("requested", "wanted", "machine", "message"),
    [
        ("torch", {"kv_cache_dtype": "int8"}, {}, "runner: torch .* not int8. Leave `kv_cache_dtype` out"),
        ("torch", {"kv_cache_dtype": "float32", "precision": "bfloat16"}, {}, "the bfloat16 format"),
        (
            "auto",
            {"kv_cache_dtype": "int8"},
            {"openvino": None, "kernels": no_compiler},
            "kv_cache_dtype: int8 cannot be had: .*not installed",
        ),
        ("auto", {"kv_cache_dtype": "float32", "device": "cuda", "precision": "auto"}, {}, "the float format"),
        ("openvino", {"kv_cache_dtype": "float32", "precision": "bfloat16"}, {}, "in the bfloat16 that it computes in"),
        ("openvino", {"kv_cache_dtype": "int8"}, {"architecture": "aarch64"}, "x86 alone, and this machine is aarch64"),
    ],
)
def test_a_cache_that_a_runner_cannot_keep(
    requested: RunnerName, wanted: dict[str, Any], machine: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_runner(requested, replace(WANTED, **wanted), replace(MACHINE, **machine))


def test_states_in_words() -> None:
    states = runner_states(MACHINE, "ready: compiled by gcc 12")
    assert states["compiled"] == "float32, int8 and int4; ready: compiled by gcc 12"
    assert states["openvino"].endswith("ready: version 2026.4.1")
    assert "not installed" in runner_states(replace(MACHINE, openvino=None), "")["openvino"]


def test_this_machine() -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    assert Machine.this(absent).openvino is None
    assert Machine.this(lambda name: "1.2").openvino == "1.2"
    assert Machine.this().architecture
