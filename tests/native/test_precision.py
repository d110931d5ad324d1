from __future__ import annotations

from pathlib import Path

import pytest

from llm_inference.native.precision import choose, read_cpu_flags


@pytest.mark.parametrize(
    ("requested", "checkpoint", "device", "flags", "expected"),
    [
        ("auto", "float32", "cpu", (), "float32"),
        ("auto", "float16", "cpu", ("avx512_bf16",), "float32"),
        ("auto", "bfloat16", "cpu", ("avx2",), "float32"),
        ("auto", "bfloat16", "cpu", ("avx512_bf16",), "bfloat16"),
        ("auto", "bfloat16", "cpu", ("amx_bf16",), "bfloat16"),
        ("auto", "bfloat16", "cuda:1", (), "auto"),
        ("float16", "float32", "cpu", (), "float16"),
        ("bfloat16", "float32", "cpu", (), "bfloat16"),
    ],
)
def test_choice(requested: str, checkpoint: str, device: str, flags: tuple[str, ...], expected: str) -> None:
    precision = choose(requested, checkpoint, device, frozenset(flags))
    assert precision.dtype == expected
    assert precision.reason


def test_flags_of_x86_and_arm(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\n\nprocessor : 1\nflags : other\n")
    assert read_cpu_flags(file) == {"fpu", "avx2", "avx512_bf16"}
    file.write_text("processor : 0\nFeatures : fp asimd bf16\n")
    assert read_cpu_flags(file) == {"fp", "asimd", "bf16"}
    assert read_cpu_flags(tmp_path / "absent") == frozenset()
