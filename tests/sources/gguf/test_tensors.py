from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from safetensors.numpy import load_file

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.sources.gguf import tensors as module
from llm_inference.sources.gguf.reader import open_gguf
from llm_inference.sources.gguf.tensors import converted_bytes, hf_name, write_safetensors
from tests.sources.gguf.files import HEADS, HIDDEN, KV_HEADS, llama_tensors, to_gguf_names, write_tiny_llama


def convert(path: Path, directory: Path, arch: str = "llama", **options: int) -> dict[str, np.ndarray]:
    directory.mkdir(exist_ok=True)
    write_safetensors(
        open_gguf(path), directory, num_heads=HEADS, num_kv_heads=KV_HEADS, permuted=arch == "llama", **options
    )  # fmt: skip
    return {name: value for file in directory.glob("*.safetensors") for name, value in load_file(str(file)).items()}


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
@pytest.mark.parametrize("slice_values", [64, 1 << 24])
def test_float32_comes_back_as_it_was(
    tmp_path: Path, arch: str, slice_values: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SLICE_VALUES", slice_values)
    expected = llama_tensors(tied=False, bias=True)
    got = convert(write_tiny_llama(tmp_path / "m.gguf", arch=arch, tensors=expected), tmp_path / "out", arch)
    assert got.keys() == expected.keys()
    assert all(np.array_equal(got[name], value) for name, value in expected.items())


@pytest.mark.parametrize("kind", [Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1])
def test_quantized_matrices_come_back_within_their_step(tmp_path: Path, kind: Q) -> None:
    original = llama_tensors()
    got = convert(write_tiny_llama(tmp_path / "m.gguf", tensors=original, quantization=kind), tmp_path / "out")
    levels = {Q.Q8_0: 127, Q.Q5_0: 15, Q.Q5_1: 15, Q.Q4_0: 7, Q.Q4_1: 7}[kind]
    for name, value in original.items():
        assert got[name].dtype == np.float32
        if value.ndim == 1:
            assert np.array_equal(got[name], value)
            continue
        # A block of 32 spans at most twice its largest value.
        peak = np.abs(value.reshape(-1, 32)).max(axis=1, keepdims=True)
        error = np.abs(got[name] - value).reshape(-1, 32)
        assert (error <= 1.2 * peak / levels).all(), name
        assert error.max() > 0


ALL_DECODABLE = [
    Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ4_NL, Q.IQ4_XS, Q.IQ2_XXS, Q.IQ3_S, Q.IQ1_S, Q.TQ1_0, Q.MXFP4,
]  # fmt: skip


@pytest.mark.parametrize("kind", ALL_DECODABLE)
def test_every_block_type_is_decoded_slice_by_slice(tmp_path: Path, kind: Q, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLICE_VALUES", 512)
    rows, width = 8, 512
    block, size = gguf.GGML_QUANT_SIZES[kind]
    # Small bytes keep the half-precision scales finite; every bit pattern of the rest is a valid block.
    packed = np.random.default_rng(0).integers(0, 60, (rows, width // block * size), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("token_embd.weight", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    got = convert(tmp_path / "m.gguf", tmp_path / "out")["model.embed_tokens.weight"]
    assert got.shape == (rows, width)
    assert np.array_equal(got, gguf.dequantize(packed, kind))
    assert len(np.unique(got)) > 2


def test_q4_k_equals_its_definition(tmp_path: Path) -> None:
    """Eight groups of 32 values: d · scale · q - dmin · min, scales and mins of six bits."""
    random = np.random.default_rng(1)
    d, dmin = np.float16(0.5), np.float16(0.25)
    scales, mins, values = random.integers(0, 64, 8), random.integers(0, 64, 8), random.integers(0, 16, (8, 32))
    packed = bytearray(d.tobytes() + dmin.tobytes())
    low = [(scales[i] & 63) | (scales[i + 4] >> 4) << 6 for i in range(4)]
    middle = [(mins[i] & 63) | (mins[i + 4] >> 4) << 6 for i in range(4)]
    high = [(scales[i + 4] & 15) | (mins[i + 4] & 15) << 4 for i in range(4)]
    packed += bytes(int(byte) for byte in [*low, *middle, *high])
    for pair in range(4):
        packed += bytes(int(a | b << 4) for a, b in zip(values[2 * pair], values[2 * pair + 1], strict=True))
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    block = np.frombuffer(bytes(packed), np.uint8).reshape(1, -1)
    writer.add_tensor("token_embd.weight", block, raw_dtype=Q.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    got = convert(tmp_path / "m.gguf", tmp_path / "out")["model.embed_tokens.weight"]
    expected = 0.5 * scales[:, None] * values - 0.25 * mins[:, None]
    assert np.allclose(got.reshape(8, 32), expected)


@pytest.mark.parametrize(("kind", "dtype"), [(Q.F16, np.float16), (Q.BF16, None)])
def test_half_types_keep_their_bits(tmp_path: Path, kind: Q, dtype: type | None) -> None:
    original = llama_tensors()
    path = write_tiny_llama(tmp_path / "m.gguf", tensors=original, quantization=kind)
    (tmp_path / "out").mkdir()
    write_safetensors(
        open_gguf(path), tmp_path / "out", num_heads=HEADS, num_kv_heads=KV_HEADS, permuted=True
    )  # fmt: skip
    import torch
    from safetensors.torch import load_file as load_torch

    got = load_torch(str(tmp_path / "out" / "model.safetensors"))
    half = torch.float16 if dtype else torch.bfloat16
    for name, value in original.items():
        expected = torch.from_numpy(value).to(half if value.ndim > 1 else torch.float32)
        assert got[name].dtype == expected.dtype
        assert torch.equal(got[name], expected)


def test_large_models_become_shards_with_an_index(tmp_path: Path) -> None:
    expected = llama_tensors()
    path = write_tiny_llama(tmp_path / "m.gguf", tensors=expected)
    got = convert(path, tmp_path / "out", max_shard_bytes=100_000)
    assert got.keys() == expected.keys()
    assert all(np.array_equal(got[name], value) for name, value in expected.items())
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 1
    assert set(index["weight_map"].values()) == set(files)
    assert all(name in load_file(str(tmp_path / "out" / file)) for name, file in index["weight_map"].items())
    total = sum(value.nbytes for value in expected.values())
    assert index["metadata"]["total_size"] == total == converted_bytes(open_gguf(path))


def test_progress_counts_every_source_byte(tmp_path: Path) -> None:
    model = open_gguf(write_tiny_llama(tmp_path / "m.gguf", quantization=Q.Q8_0))
    seen: list[int] = []
    write_safetensors(
        model, tmp_path, num_heads=HEADS, num_kv_heads=KV_HEADS, permuted=True, on_bytes=seen.append
    )  # fmt: skip
    assert sum(seen) == sum(info.num_bytes for info in model.tensors.values())


def test_names_agree_with_the_gguf_packages_table() -> None:
    names = llama_tensors(tied=False, bias=True)
    assert [hf_name(name) for name in to_gguf_names(names, "llama")] == list(names)
    assert hf_name("rope_freqs.weight") is None
    for unknown in (
        "blk.0.attn_qkv.weight",
        "blk.0.ffn_gate_exps.weight",
        "blk.x.attn_q.weight",
        "v.patch_embd.weight",
    ):
        with pytest.raises(UnsupportedModelError, match=unknown):
            hf_name(unknown)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", extra={"blk.0.attn_q_norm.weight": np.ones(HIDDEN, np.float32)})
    with pytest.raises(UnsupportedModelError, match=rf"{path}: GGUF tensor 'blk\.0\.attn_q_norm\.weight'"):
        convert(path, tmp_path / "out")
    path = write_tiny_llama(tmp_path / "n.gguf")
    with pytest.raises(SourceError, match="64 rows, which 5 heads cannot share"):
        write_safetensors(open_gguf(path), tmp_path, num_heads=5, num_kv_heads=2, permuted=True)
    writer = gguf.GGUFWriter(tmp_path / "o.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(SourceError, match="holds no tensors"):
        converted_bytes(open_gguf(tmp_path / "o.gguf"))
    writer = gguf.GGUFWriter(tmp_path / "p.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.zeros((1, 4), np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="quantized as I32, which cannot be decoded"):
        convert(tmp_path / "p.gguf", tmp_path / "out")
