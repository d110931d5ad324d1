"""Proves that a model directory is whole before anything is loaded: files present, readable, not cut, not pointers.

Opens headers only. Pickles (`pytorch_model.bin`) are looked at as bytes, never unpickled; that they hold the right
tensors is the loader's to find out. Knows nothing of architectures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from llm_inference.errors import SourceError
from llm_inference.model_spec.fields import JsonFields
from llm_inference.model_spec.safetensors import (
    INDEX_NAME,
    TensorHeader,
    read_safetensors_header,
    read_weight_map,
    weight_files,
)

_TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_PICKLE_INDEX: Final = "pytorch_model.bin.index.json"
_PICKLES: Final = ("pytorch_model*.bin", "*.pt", "*.pth")
_LFS: Final = b"version https://git-lfs"
#: A zip archive, or the protocol byte of a bare pickle: what torch has ever written.
_PICKLE_STARTS: Final = (b"PK\x03\x04", b"\x80")


def verify(directory: Path, *, require_tokenizer: bool = True) -> None:
    """Raise `SourceError` with one line that names the first file at fault; return if the model is whole.

    `require_tokenizer=False`: the tokenizer comes from elsewhere, so this directory need not have one.
    """
    config = JsonFields.read(directory / "config.json")
    if not config.has("model_type") and not config.texts("architectures"):
        raise SourceError(f"{config.path}: names neither 'model_type' nor 'architectures'; it is no model's config")
    if (directory / "generation_config.json").exists():
        JsonFields.read(directory / "generation_config.json")
    _verify_tokenizer(directory, required=require_tokenizer)
    paths = weight_files(directory)
    if not paths:
        _verify_pickles(directory)
        return
    index = directory / INDEX_NAME
    for path in paths:
        if not path.exists():
            raise SourceError(f"{path} is missing: {index.name} places tensors in it; fetch it again")
    headers = {path.name: read_safetensors_header(path) for path in paths}
    if index.exists():
        _verify_index(index, headers)
    elif not any(headers.values()):
        raise SourceError(f"{directory}: its safetensors files hold no tensors")


def _verify_tokenizer(directory: Path, *, required: bool) -> None:
    found = [directory / name for name in _TOKENIZER_FILES if (directory / name).exists()]
    if not found and required:
        raise SourceError(
            f"{directory}: no tokenizer; one of {', '.join(_TOKENIZER_FILES)} is needed beside the weights, "
            "or set `tokenizer:` to a directory that has one"
        )
    for path in found:
        if _start(path).startswith(_LFS):
            raise SourceError(f"{path}: a Git LFS pointer, not the file itself; run `git lfs pull`")
    if found and found[0].suffix == ".json":
        JsonFields.read(found[0])
    if (directory / "tokenizer_config.json").exists():
        JsonFields.read(directory / "tokenizer_config.json")


def _verify_index(path: Path, headers: dict[str, dict[str, TensorHeader]]) -> None:
    """Index and shards must name the same tensors, both ways."""
    weight_map = read_weight_map(path)
    for tensor, name in weight_map.items():
        if tensor not in headers[name]:
            raise SourceError(f"{path.parent / name}: tensor {tensor!r} is missing, which {path.name} places in it")
    for name, header in headers.items():
        for tensor in header:
            if weight_map.get(tensor) != name:
                raise SourceError(
                    f"{path.parent / name}: tensor {tensor!r} is not in {path.name}; they do not belong together"
                )


def _verify_pickles(directory: Path) -> None:
    index = directory / _PICKLE_INDEX
    names: set[str] = set(read_weight_map(index).values()) if index.exists() else set()
    for name in sorted(names):
        if not (directory / name).exists():
            raise SourceError(f"{directory / name} is missing: {index.name} places tensors in it; fetch it again")
    paths = sorted({path for pattern in _PICKLES for path in directory.glob(pattern)})
    if not paths:
        raise SourceError(f"{directory}: no weights; *.safetensors or pytorch_model*.bin are needed")
    for path in paths:
        start = _start(path)
        if start.startswith(_LFS):
            raise SourceError(f"{path}: a Git LFS pointer, not the file itself; run `git lfs pull`")
        if not start.startswith(_PICKLE_STARTS):
            raise SourceError(f"{path}: empty or not a torch checkpoint; fetch it again")
        # A zip's table of contents is at its end, so a cut file shows there.
        if start.startswith(b"PK") and not _ends_as_zip(path):
            raise SourceError(f"{path}: truncated: the archive's end is missing; fetch it again")


def _start(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(64)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error


def _ends_as_zip(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 66000))
        return b"PK\x05\x06" in file.read()
