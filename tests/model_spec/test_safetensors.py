from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from llm_inference.errors import SourceError
from llm_inference.model_spec import TensorHeader, read_safetensors_header
from llm_inference.model_spec.safetensors import read_weight_map, weight_files
from tests.model_spec.files import write_index, write_weights


def write_raw(path: Path, header: dict[str, Any] | bytes, data: bytes) -> Path:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    return path


def test_reads_what_safetensors_writes(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file(
        {"b": np.zeros((2, 3), np.float32), "a": np.zeros((5,), np.float16), "e": np.zeros((0, 4), np.int64)},
        str(path), metadata={"format": "pt"},
    )  # fmt: skip
    assert read_safetensors_header(path) == {
        "b": TensorHeader("b", "F32", (2, 3), 24),
        "a": TensorHeader("a", "F16", (5,), 10),
        "e": TensorHeader("e", "I64", (0, 4), 0),
    }


def test_every_cut_of_a_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": np.zeros((2, 3), np.float32)}, str(path))
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(SourceError, match=r"m\.safetensors: (truncated|corrupt)"):
            read_safetensors_header(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(SourceError, match="longer than its header says"):
        read_safetensors_header(path)


GOOD: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{nonsense",
        b"\xff\xff",
        {"a": 1},
        {"a": GOOD | {"dtype": "F5"}},
        {"a": GOOD | {"shape": [-2]}},
        {"a": GOOD | {"shape": [True, 2]}},
        {"a": GOOD | {"shape": ["2"]}},
        {"a": GOOD | {"data_offsets": [0]}},
        {"a": GOOD | {"data_offsets": [4, 8]}},
        {"a": {"dtype": "F32"}},
        {"a": GOOD, "b": GOOD},
    ],
)
def test_malformed_headers(tmp_path: Path, header: dict[str, Any] | bytes) -> None:
    path = write_raw(tmp_path / "m.safetensors", header, b"\0" * 8)
    with pytest.raises(SourceError, match=r"m\.safetensors: corrupt header"):
        read_safetensors_header(path)


def test_a_header_length_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.write((200_000_000).to_bytes(8, "little"))
        file.truncate(300_000_000)
    with pytest.raises(SourceError, match="a header of 200000000 bytes"):
        read_safetensors_header(path)


def test_pointer_and_absent_files(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with pytest.raises(SourceError, match="is missing"):
        read_safetensors_header(path)
    path.write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(SourceError, match="Git LFS pointer"):
        read_safetensors_header(path)


def test_weight_files_are_those_of_the_index_then_the_single_one_then_all(tmp_path: Path) -> None:
    write_weights(tmp_path, {"x.safetensors": ["a"], "consolidated.safetensors": ["b"]})
    assert [path.name for path in weight_files(tmp_path)] == ["consolidated.safetensors", "x.safetensors"]
    write_weights(tmp_path, {"model.safetensors": ["a"]})
    assert [path.name for path in weight_files(tmp_path)] == ["model.safetensors"]
    write_index(tmp_path, {"a": "x.safetensors", "b": "absent.safetensors"})
    assert [path.name for path in weight_files(tmp_path)] == ["absent.safetensors", "x.safetensors"]


@pytest.mark.parametrize("weight_map", [{}, {"a": 1}, {"a": "../x.safetensors"}, {"a": "/etc/x"}])
def test_malformed_index(tmp_path: Path, weight_map: dict[str, Any]) -> None:
    write_index(tmp_path, weight_map)
    with pytest.raises(SourceError, match=r"model\.safetensors\.index\.json"):
        read_weight_map(tmp_path / "model.safetensors.index.json")
