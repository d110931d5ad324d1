"""A small GGUF file before and after, read by gguf's own reader."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from llm_inference.adapters.library.gguf_weights import WeightType, rewrite, weight_type


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(77)
    writer.add_token_list(["a", "b"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    random = np.random.default_rng(0)
    matrix = random.standard_normal((64, 64)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q4_1
    writer.add_tensor("matrix", gguf.quantize(matrix, kind), raw_dtype=kind)
    writer.add_tensor("narrow", random.standard_normal((4, 8)).astype(np.float32))
    writer.add_tensor("norm", random.standard_normal(64).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def values(path: Path) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    return {t.name: gguf.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize(("kind", "tolerance"), [("F16", 2e-3), ("Q8_0", 2e-2), ("Q4_0", 0.3)])
def test_the_same_model_in_other_weights(source: Path, tmp_path: Path, kind: WeightType, tolerance: float) -> None:
    target = tmp_path / "target.gguf"
    rewrite(source, target, kind)
    assert weight_type(source) == "Q4_1"
    reader = gguf.GGUFReader(target)
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert types == {"matrix": kind, "narrow": "F16" if kind == "F16" else "F32", "norm": "F32"}
    before, after = values(source), values(target)
    assert set(before) == set(after)
    for name, value in before.items():
        assert value.shape == after[name].shape
        assert np.abs(value - after[name]).max() < tolerance
    assert reader.fields["llama.context_length"].contents() == 77
    assert reader.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    assert reader.fields["general.file_type"].contents() != gguf.LlamaFileType.MOSTLY_Q4_1
