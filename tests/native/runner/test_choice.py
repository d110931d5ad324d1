"""Which runner is taken, and that the reason says what to change."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from typing import Any

import pytest

from llm_inference.errors import ConfigError
from llm_inference.native.runner.choice import Machine, Wanted, choose_runner

WANTED = Wanted(model_type="llama", device="cpu", precision="float32", quantization=None, block_size=None)
MACHINE = Machine("x86_64", frozenset({"avx2", "avx512_bf16"}), "2026.4.1")


def test_auto_takes_openvino_where_it_can() -> None:
    choice = choose_runner("auto", WANTED, MACHINE)
    assert choice.name == "openvino"
    assert "openvino 2026.4.1 is installed" in choice.reason
    for can in ({"quantization": "int8"}, {"precision": "bfloat16"}, {"block_size": 32}, {"model_type": "qwen2"}):
        assert choose_runner("auto", replace(WANTED, **can), MACHINE).name == "openvino"
    assert choose_runner("auto", WANTED, Machine("aarch64", frozenset(), "2026.4.0")).name == "openvino"


def test_torch_is_taken_when_asked_for() -> None:
    assert choose_runner("torch", WANTED, MACHINE).name == "torch"


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
        ({"quantization": "int4"}, {}, "cannot quantize to int4"),
        ({"precision": "bfloat16"}, {"cpu_flags": frozenset({"avx2"})}, "only on x86 CPUs that have it in hardware"),
        ({"precision": "float16"}, {}, "not in float16"),
        ({"block_size": 16}, {}, "block_size of 32, and 16 is configured"),
    ],
)
def test_obstacles(wanted: dict[str, Any], machine: dict[str, Any], reason: str) -> None:
    """Auto falls back and says why; asked for by name it is an error that says why."""
    what, where = replace(WANTED, **wanted), replace(MACHINE, **machine)
    choice = choose_runner("auto", what, where)
    assert choice.name == "torch"
    with pytest.raises(
        ConfigError, match=f"runner: openvino cannot serve this: .*{reason}.*Set `runner: torch`"
    ) as raised:
        choose_runner("openvino", what, where)
    assert choice.reason in raised.value.message


def test_this_machine() -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    assert Machine.this(absent).openvino is None
    assert Machine.this(lambda name: "1.2").openvino == "1.2"
    assert Machine.this().architecture
