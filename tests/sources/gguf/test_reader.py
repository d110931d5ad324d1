from __future__ import annotations

import shutil
import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_inference.errors import LLMInferenceError, SourceError, UnsupportedModelError
from llm_inference.sources.gguf.reader import open_gguf
from tests.sources.gguf.files import TOKENS, write_tiny_llama


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def header(num_tensors: int, pairs: list[bytes], body: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, len(pairs)) + b"".join(pairs) + body


def tensor(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def refused(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(LLMInferenceError) as caught:
            open_gguf(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_reads_what_the_gguf_package_reads(default_gguf: Path) -> None:
    ours, theirs = open_gguf(default_gguf), gguf.GGUFReader(default_gguf)
    expected = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == expected
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for item in theirs.tensors:
        info = ours.tensors[item.name]
        assert info.shape == tuple(int(size) for size in item.shape[::-1])
        assert info.type_name == item.tensor_type.name
        assert np.array_equal(ours.rows(info).reshape(-1), item.data.view(np.uint8).reshape(-1))


def test_all_value_types(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "v.gguf", "llama")
    values = {
        "a.bool": (True, writer.add_bool),
        "a.u8": (200, writer.add_uint8),
        "a.i8": (-5, writer.add_int8),
        "a.u16": (60000, writer.add_uint16),
        "a.i16": (-6, writer.add_int16),
        "a.i32": (-7, writer.add_int32),
        "a.u64": (2**63, writer.add_uint64),
        "a.i64": (-(2**40), writer.add_int64),
        "a.f32": (1.5, writer.add_float32),
        "a.f64": (2.25, writer.add_float64),
        "a.str": ("hé😀", writer.add_string),
        "a.strings": (["x", "", "ÿ"], writer.add_array),
        "a.ints": ([1, -2], writer.add_array),
        "a.bools": ([True, False], writer.add_array),
    }
    for key, (value, add) in values.items():
        add(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    read = open_gguf(tmp_path / "v.gguf").metadata
    assert {key: read[key] for key in values} == {key: value for key, (value, _) in values.items()}


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write_tiny_llama(tmp_path / "m.gguf").read_bytes()
    open_gguf(tmp_path / "m.gguf")
    path = tmp_path / "cut.gguf"
    for length in [*range(0, 400, 3), *range(400, len(whole) - 1, 9973), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(SourceError, match=r"cut\.gguf: (truncated|the file is empty)"):
            open_gguf(path)


HUGE = 2**62


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(HUGE, []), "the number of tensors is"),
        (header(2**40, []), "the number of tensors is"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), "the number of metadata keys is"),
        (header(0, [struct.pack("<Q", HUGE) + b"x" * 9]), "the length of a metadata key is"),
        (header(0, [text("k") + struct.pack("<IQ", 8, HUGE) + b"x" * 99]), "the length of the value of 'k' is"),
        (header(0, [text("k") + struct.pack("<IIQ", 9, 4, HUGE)]), "the length of 'k' is"),
        (header(0, [text("k") + struct.pack("<IIQ", 9, 8, HUGE)]), "the length of 'k' is"),
        (header(0, [text("k") + struct.pack("<IIQ", 9, 8, 1000) + b"\0" * 100]), "the length of 'k' is"),
        (header(0, [text("k") + struct.pack("<II", 99, 0) + b"\0" * 40]), "unknown type 99"),
        (header(0, [text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 50]), "nested too deeply"),
        (header(0, [text("k") + struct.pack("<IB", 0, 1)] * 2), "'k' is there twice"),
        (header(0, [text("k" * 70000) + struct.pack("<IB", 0, 1)]), "70000 bytes long"),
        (header(1, [], tensor("t", [2**61, 2**61]) + b"\0" * 64), "truncated: tensor 't'"),
        (header(1, [], tensor("t", [4], offset=HUGE) + b"\0" * 64), "truncated: tensor 't'"),
        (header(1, [], tensor("t", [0]) + b"\0" * 64), "cannot have the shape"),
        (header(1, [], tensor("t", [33], kind=2) + b"\0" * 64), "type Q4_0 cannot have the shape"),
        (header(1, [], tensor("t", [1] * 5) + b"\0" * 64), "has 5 dimensions"),
        (header(1, [], tensor("t", []) + b"\0" * 64), "has 0 dimensions"),
        (header(1, [], tensor("t", [1], kind=250) + b"\0" * 64), "unknown data type 250"),
        (header(2, [], tensor("t", [1]) * 2 + b"\0" * 64), "'t' is there twice"),
        (header(0, [text("general.alignment") + struct.pack("<II", 4, 0)]), "no power of two"),
        (header(0, [text("general.alignment") + struct.pack("<II", 4, 33)]), "no power of two"),
        (header(0, [], version=1), "has GGUF version 1"),
        (header(0, [], version=3 << 24), "big-endian"),
        (b"GGML" + b"\0" * 40, "not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    ],
)
def test_lying_headers_cost_nothing(tmp_path: Path, content: bytes, message: str) -> None:
    assert message in refused(tmp_path / "bad.gguf", content)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("small") / "m.gguf")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 1200), value=st.binary(min_size=1, max_size=8))
def test_any_damage_ends_in_a_result_or_in_our_own_error(small: Path, tmp_path: Path, at: int, value: bytes) -> None:
    content = bytearray(small.read_bytes())
    content[at : at + len(value)] = value
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    try:
        model = open_gguf(path)
    except (SourceError, UnsupportedModelError) as error:
        message = str(error)
    else:
        message = ""
        assert all(model.rows(info).nbytes == info.num_bytes for info in model.tensors.values())
    assert message == "" or str(path) in message


def test_typed_access(small: Path) -> None:
    model = open_gguf(small)
    assert model.architecture == "llama"
    assert model.get("llama.block_count", int, 0) == 2
    assert model.get("absent", int, 7) == 7
    assert len(model.require("tokenizer.ggml.tokens", list)) == len(TOKENS)
    with pytest.raises(SourceError, match="the metadata key 'absent' is missing"):
        model.require("absent", str)
    with pytest.raises(SourceError, match=r"'llama\.block_count' must be of type str"):
        model.get("llama.block_count", str, "")


def test_split_models(tmp_path: Path, small: Path) -> None:
    write_tiny_llama(tmp_path / "m.gguf", split_max_tensors=6)
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert len(parts) > 2
    whole = open_gguf(small)
    for part in (parts[0], parts[1]):
        split = open_gguf(part)
        assert split.path == parts[0]
        assert split.tensors.keys() == whole.tensors.keys()
        assert all(
            np.array_equal(split.rows(split.tensors[name]), whole.rows(info)) for name, info in whole.tensors.items()
        )
    shutil.copy(parts[0], tmp_path / "renamed.gguf")
    with pytest.raises(SourceError, match=r"renamed\.gguf: one of \d files of a split model"):
        open_gguf(tmp_path / "renamed.gguf")
    parts[1].unlink()
    with pytest.raises(SourceError, match=f"{parts[1].name} is missing beside it"):
        open_gguf(parts[0])
