"""Case O1: what is cut, missing or not itself is named in one line, before anything listens."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch

from llm_inference.errors import SourceError
from llm_inference.sources.verify import verify
from tests.model_spec.files import write_config, write_index, write_model, write_tokenizer, write_weights

SHARDS = {"model-00001-of-00002.safetensors": ["a", "b"], "model-00002-of-00002.safetensors": ["c"]}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"


def sharded(directory: Path) -> Path:
    write_config(directory)
    write_tokenizer(directory)
    write_weights(directory, SHARDS)
    write_index(directory, {tensor: file for file, tensors in SHARDS.items() for tensor in tensors})
    return directory


def refused(directory: Path) -> str:
    with pytest.raises(SourceError) as caught:
        verify(directory)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_whole_models_pass(tmp_path: Path, default_model_dir: Path) -> None:
    verify(default_model_dir)
    for make in (write_model, sharded):
        directory = tmp_path / make.__name__
        directory.mkdir()
        verify(make(directory))
        (directory / "model.safetensors").unlink(missing_ok=True)
        # The checks do look: the same directory without its weights fails.
        for path in directory.glob("*.safetensors"):
            path.unlink()
        assert "safetensors" in refused(directory)


@pytest.mark.parametrize("length", [0, 5, 30, -20, -1])
def test_a_cut_file_is_named(tmp_path: Path, length: int) -> None:
    write_model(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    assert f"{path}: truncated" in refused(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    sharded(tmp_path)
    path = tmp_path / "model-00002-of-00002.safetensors"
    path.unlink()
    assert f"{path} is missing" in refused(tmp_path)


def test_a_cut_shard_is_named(tmp_path: Path) -> None:
    sharded(tmp_path)
    path = tmp_path / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert str(path) in refused(tmp_path)


def test_an_index_that_names_a_missing_tensor(tmp_path: Path) -> None:
    sharded(tmp_path)
    write_index(tmp_path, {"a": "model-00001-of-00002.safetensors", "zz": "model-00002-of-00002.safetensors"})
    message = refused(tmp_path)
    assert "model-00002-of-00002.safetensors" in message
    assert "'zz'" in message


def test_a_shard_with_a_tensor_that_the_index_does_not_know(tmp_path: Path) -> None:
    sharded(tmp_path)
    write_index(tmp_path, {"a": "model-00001-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"})
    assert "'b' is not in model.safetensors.index.json" in refused(tmp_path)


def test_config(tmp_path: Path) -> None:
    assert "config.json is missing" in refused(tmp_path)
    write_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert "names neither 'model_type' nor 'architectures'" in refused(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "lla')
    assert "config.json: not valid JSON" in refused(tmp_path)
    write_config(tmp_path)
    (tmp_path / "generation_config.json").write_text("[]")
    assert "generation_config.json: must hold a JSON object" in refused(tmp_path)


def test_tokenizer(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    assert "tokenizer.json: not valid JSON" in refused(tmp_path)
    (tmp_path / "tokenizer.json").write_text(POINTER)
    assert "tokenizer.json: a Git LFS pointer" in refused(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    assert "no tokenizer" in refused(tmp_path)
    (tmp_path / "tokenizer.model").write_text(POINTER)
    assert "tokenizer.model: a Git LFS pointer" in refused(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x0e")
    verify(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    assert "tokenizer_config.json: not valid JSON" in refused(tmp_path)


def test_weights_that_are_pointers_or_absent_or_empty(tmp_path: Path) -> None:
    write_model(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_text(POINTER)
    assert f"{path}: a Git LFS pointer" in refused(tmp_path)
    path.unlink()
    assert "no weights" in refused(tmp_path)
    path.write_bytes((2).to_bytes(8, "little") + b"{}")
    assert "hold no tensors" in refused(tmp_path)


class Exploding:
    """Unpickling this would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


def test_pickles_are_looked_at_and_never_opened(tmp_path: Path) -> None:
    write_config(tmp_path)
    write_tokenizer(tmp_path)
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.zeros(3)}, path)
    verify(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-10] if len(whole) < 40 else whole[: len(whole) // 2])
    assert f"{path}: truncated" in refused(tmp_path)
    path.write_bytes(b"")
    assert f"{path}: empty" in refused(tmp_path)
    path.write_text(POINTER)
    assert f"{path}: a Git LFS pointer" in refused(tmp_path)
    path.write_bytes(pickle.dumps(Exploding(tmp_path / "exploded")))
    verify(tmp_path)
    assert not (tmp_path / "exploded").exists()
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "pytorch_model-2.bin"}}))
    assert "pytorch_model-2.bin is missing" in refused(tmp_path)
