"""Weight files of every kind, and files that are broken or hostile."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from llm_inference.errors import SourceError
from llm_inference.native.checkpoint import Checkpoint

ONE = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}


def read(directory: Path) -> dict[str, torch.Tensor]:
    return {tensor.name: tensor.data.clone() for tensor in Checkpoint(directory).tensors()}


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_single_safetensors(tmp_path: Path) -> None:
    save_file(ONE, tmp_path / "model.safetensors")
    assert_same(read(tmp_path), ONE)
    assert Checkpoint(tmp_path).num_bytes == (tmp_path / "model.safetensors").stat().st_size


def test_index_decides_which_files_are_read(tmp_path: Path) -> None:
    save_file({"a": ONE["a"]}, tmp_path / "model-1.safetensors")
    save_file({"b": ONE["b"]}, tmp_path / "model-2.safetensors")
    save_file({"c": ONE["b"]}, tmp_path / "consolidated.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_same(read(tmp_path), ONE)


def test_safetensors_go_before_pickles(tmp_path: Path) -> None:
    save_file(ONE, tmp_path / "weights.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
    assert_same(read(tmp_path), ONE)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_pickled_tensors(name: str, zipped: bool, tmp_path: Path) -> None:
    torch.save(ONE, tmp_path / name, _use_new_zipfile_serialization=zipped)
    assert_same(read(tmp_path), ONE)


def test_nested_state_dict(tmp_path: Path) -> None:
    torch.save({"state_dict": ONE}, tmp_path / "model.pt")
    assert_same(read(tmp_path), ONE)


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch pwned",)


def test_a_pickle_that_needs_more_is_refused_and_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": ONE["a"], "x": Hostile()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(SourceError, match=r"pytorch_model\.bin: refused: this pickle needs more than plain tensors"):
        read(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(SourceError, match=r"pytorch_model\.bin"):
        read(tmp_path)
    assert not (tmp_path / "pwned").exists()


def test_a_pickle_of_something_else_is_named(tmp_path: Path) -> None:
    torch.save([ONE["a"]], tmp_path / "model.pt")
    with pytest.raises(SourceError, match=r"model\.pt: does not hold a plain dictionary of tensors"):
        read(tmp_path)


@pytest.mark.parametrize("kept", [4, 40, -3])
def test_a_truncated_file_is_named(kept: int, tmp_path: Path) -> None:
    """Case O1."""
    save_file(ONE, tmp_path / "whole")
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "whole").read_bytes()[:kept])
    with pytest.raises(SourceError, match=r"model\.safetensors: cannot be read as safetensors"):
        read(tmp_path)
    torch.save(ONE, tmp_path / "whole")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes((tmp_path / "whole").read_bytes()[:kept])
    with pytest.raises(SourceError, match=r"pytorch_model\.bin"):
        read(tmp_path)


def test_missing_shard_and_bad_index(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    with pytest.raises(SourceError, match=r"model-1\.safetensors: missing, but model\.safetensors\.index\.json names"):
        Checkpoint(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../model-1.safetensors"}}))
    with pytest.raises(SourceError, match=r"'\.\./model-1\.safetensors', which is no file of this directory"):
        Checkpoint(tmp_path)
    for content in ("{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": []}}'):
        index.write_text(content)
        with pytest.raises(SourceError, match="not a readable index"):
            Checkpoint(tmp_path)


def test_no_weights_at_all(tmp_path: Path) -> None:
    (tmp_path / "training_args.bin").write_bytes(b"")
    with pytest.raises(SourceError, match="no weights found"):
        Checkpoint(tmp_path)
