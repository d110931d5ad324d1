"""What a token of the cache takes, by runner and quantization."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_inference.model_spec import ModelSpec
from llm_inference.native.runner.kv_format import KVFormat, kv_format
from tests.native.tiny_models import save_tiny


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("openvino", "float32", None, "auto", "x86_64"), KVFormat("float32")),
        (("openvino", "bfloat16", None, "auto", "x86_64"), KVFormat("bfloat16")),
        (("openvino", "float32", "int8", "auto", "x86_64"), KVFormat("uint8", 8)),
        (("openvino", "float32", "int8", "auto", "aarch64"), KVFormat("float32")),
        (("openvino", "float32", "int8", "float32", "x86_64"), KVFormat("float32")),
        (("openvino", "float32", None, "int8", "x86_64"), KVFormat("uint8", 8)),
        (("openvino", "bfloat16", None, "int8", "x86_64"), KVFormat("uint8", 8)),
        (("compiled", "float32", "int8", "auto", "aarch64"), KVFormat("uint8", 8)),
        (("compiled", "bfloat16", "int4", "int8", None), KVFormat("uint8", 8)),
        (("compiled", "float32", "int8", "float32", None), KVFormat("float32")),
        (("compiled", "float32", None, "auto", "x86_64"), KVFormat("float32")),
        (("compiled", "float32", None, "int8", "aarch64"), KVFormat("uint8", 8)),
        (("torch", "float32", "int8", "auto", "x86_64"), KVFormat("float32")),
        (("torch", "bfloat16", None, "auto", None), KVFormat("bfloat16")),
    ],
)
def test_the_format_is_that_of_the_computation_unless_the_weights_are_quantized_or_it_is_said(
    arguments: tuple[str, str, str | None, str, str | None], expected: KVFormat
) -> None:
    *what, architecture = arguments
    assert kv_format(*what, architecture=architecture) == expected  # type: ignore[arg-type]


def test_bytes_of_a_token(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    spec = ModelSpec.from_directory(tmp_path)
    heads = 2 * spec.num_layers * spec.num_kv_heads
    assert KVFormat("bfloat16").bytes_per_token(spec) == heads * spec.head_dim * 2
    assert KVFormat("float32").bytes_per_token(spec) == spec.kv_bytes_per_token("float32")
    assert KVFormat("uint8", 8).bytes_per_token(spec) == heads * (spec.head_dim + 8)
