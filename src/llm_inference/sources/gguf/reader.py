"""Reads the metadata and the tensor table of GGUF files, and gives out the raw bytes of tensors.

    magic version n_tensors n_kv | key type value … | name n_dims dims type offset … | padding | data

A file from anywhere is hostile until proven otherwise: every count and length is compared with the bytes that are left
in the file before anything is allocated or skipped, so a lying header costs nothing and ends in a `SourceError`.
Knows the layout alone: neither what a key means nor how a block of a quantized type is decoded.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from llm_inference.errors import SourceError, UnsupportedModelError

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MAX_DIMS: Final = 4
_MAX_NESTING: Final = 4
_MAX_KEY_BYTES: Final = 65535
_STRING: Final = 8
_ARRAY: Final = 9
_BOOL: Final = 7
_SCALARS: Final = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_SPLIT_NAME: Final = re.compile(r"^(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. `shape` is row-major as numpy has it (GGUF stores the reverse)."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    file: Path
    offset: int
    num_bytes: int

    @property
    def num_rows(self) -> int:
        """Rows of blocks: all axes but the last, which is the one that is quantized in blocks."""
        return math.prod(self.shape[:-1])


@dataclass(frozen=True, slots=True)
class GgufModel:
    """One model: the metadata of its first file and the tensors of all its files."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]

    @property
    def architecture(self) -> str:
        """`general.architecture`. Raises `SourceError` if it is absent."""
        return str(self.require("general.architecture", str))

    def require(self, key: str, kind: type[Any]) -> Any:
        """The value of `key`, checked to be a `kind`. Raises `SourceError`."""
        if key not in self.metadata:
            raise SourceError(f"{self.path}: the metadata key {key!r} is missing; the file is not a complete model")
        return self.get(key, kind, None)

    def get(self, key: str, kind: type[Any], default: Any) -> Any:
        """The value of `key`, or `default` if it is absent. Raises `SourceError` if it is not a `kind`."""
        value = self.metadata.get(key, default)
        if value is default:
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise SourceError(f"{self.path}: metadata key {key!r} must be of type {kind.__name__}, not {value!r:.80}")
        return value

    def rows(self, info: TensorInfo) -> npt.NDArray[np.uint8]:
        """The raw bytes `[num_rows, bytes_per_row]` of one tensor, mapped, not read."""
        flat = np.memmap(info.file, dtype=np.uint8, mode="r", offset=info.offset, shape=(info.num_bytes,))
        return flat.reshape(info.num_rows, -1)


def open_gguf(path: Path) -> GgufModel:
    """Read the header of `path`, and of its sister files when the model is split. Raises `SourceError`."""
    metadata, tensors = _Header(path).parse()
    model = GgufModel(path, metadata, tensors)
    count = model.get("split.count", int, 1)
    if count <= 1:
        return model
    match = _SPLIT_NAME.match(path.name)
    if match is None or int(match["count"]) != count:
        raise SourceError(
            f"{path}: one of {count} files of a split model, but it is not named like <name>-00001-of-{count:05d}.gguf"
        )
    parts = [path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    for part in parts:
        if not part.exists():
            raise SourceError(f"{path}: the model is split into {count} files and {part.name} is missing beside it")
    merged: dict[str, TensorInfo] = {}
    first: dict[str, Any] = {}
    for part in parts:
        part_metadata, part_tensors = _Header(part).parse()
        first = first or part_metadata
        for name, info in part_tensors.items():
            if name in merged:
                raise SourceError(f"{part}: tensor {name!r} is already in {merged[name].file.name}")
            merged[name] = info
    return GgufModel(parts[0], first, merged)


class _Header:
    """A cursor over one file's header. Reads forward only and never beyond the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file_bytes = path.stat().st_size
            if self._file_bytes == 0:
                raise SourceError(f"{path}: the file is empty; fetch it again")
            self._data = np.memmap(path, dtype=np.uint8, mode="r").data
        except OSError as error:
            raise SourceError(f"{path}: cannot be read: {error.strerror or error}") from error
        self._at = 0

    def parse(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        magic = bytes(self._take(4, "the magic"))
        if magic != _MAGIC:
            hint = (
                "a Git LFS pointer, not the file itself; run `git lfs pull`" if magic == b"vers" else "not a GGUF file"
            )
            raise SourceError(f"{self._path}: {hint}")
        version = self._integer("<I", "the version")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            why = "is in big-endian byte order" if swapped in _VERSIONS else f"has GGUF version {version}"
            raise UnsupportedModelError(f"{self._path}: {why}; versions 2 and 3 in little-endian order can be read")
        num_tensors = self._count("the number of tensors", 24)
        num_pairs = self._count("the number of metadata keys", 13)
        metadata: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = self._string("a metadata key", _MAX_KEY_BYTES)
            if key in metadata:
                raise SourceError(f"{self._path}: the metadata key {key!r} is there twice; the file is corrupt")
            metadata[key] = self._value(self._integer("<I", f"the type of {key!r}"), key, 0)
        entries = [self._tensor() for _ in range(num_tensors)]
        return metadata, self._place(entries, metadata)

    def _place(
        self, entries: list[tuple[str, tuple[int, ...], str, int, int]], metadata: dict[str, Any]
    ) -> dict[str, TensorInfo]:
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 30 or alignment & (alignment - 1):
            raise SourceError(f"{self._path}: general.alignment is {alignment!r}, which is no power of two")
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, shape, type_name, num_bytes, offset in entries:
            if name in tensors:
                raise SourceError(f"{self._path}: tensor {name!r} is there twice; the file is corrupt")
            end = start + offset + num_bytes
            if end > self._file_bytes:
                raise SourceError(
                    f"{self._path}: truncated: tensor {name!r} ends at byte {end}, the file at {self._file_bytes}; "
                    "fetch it again"
                )
            tensors[name] = TensorInfo(name, shape, type_name, self._path, start + offset, num_bytes)
        return tensors

    def _tensor(self) -> tuple[str, tuple[int, ...], str, int, int]:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        name = self._string("a tensor's name", _MAX_KEY_BYTES)
        num_dims = self._integer("<I", f"the rank of {name!r}")
        if not 1 <= num_dims <= _MAX_DIMS:
            raise SourceError(f"{self._path}: tensor {name!r} has {num_dims} dimensions; the file is corrupt")
        shape = tuple(self._integer("<Q", f"the shape of {name!r}") for _ in range(num_dims))[::-1]
        type_id = self._integer("<I", f"the type of {name!r}")
        offset = self._integer("<Q", f"the offset of {name!r}")
        try:
            kind = GGMLQuantizationType(type_id)
        except ValueError:
            raise UnsupportedModelError(f"{self._path}: tensor {name!r} has the unknown data type {type_id}") from None
        block_values, block_bytes = GGML_QUANT_SIZES[kind]
        if min(shape) < 1 or shape[-1] % block_values:
            raise SourceError(
                f"{self._path}: tensor {name!r} of type {kind.name} cannot have the shape {list(shape)}; it is corrupt"
            )
        return name, shape, kind.name, math.prod(shape) // block_values * block_bytes, offset

    def _value(self, kind: int, key: str, depth: int) -> Any:
        if kind == _STRING:
            return self._string(f"the value of {key!r}", self._file_bytes)
        if kind == _ARRAY:
            if depth >= _MAX_NESTING:
                raise SourceError(f"{self._path}: the arrays of {key!r} are nested too deeply; the file is corrupt")
            element = self._integer("<I", f"the type of {key!r}")
            if element in _SCALARS:
                dtype = np.dtype(_SCALARS[element])
                count = self._count(f"the length of {key!r}", dtype.itemsize)
                array = np.frombuffer(self._take(count * dtype.itemsize, f"the array {key!r}"), dtype=dtype)
                return [bool(value) for value in array] if element == _BOOL else array.tolist()
            count = self._count(f"the length of {key!r}", 8)
            return [self._value(element, key, depth + 1) for _ in range(count)]
        if kind not in _SCALARS:
            raise SourceError(
                f"{self._path}: the metadata key {key!r} has the unknown type {kind}; the file is corrupt"
            )
        dtype = np.dtype(_SCALARS[kind])
        value = np.frombuffer(self._take(dtype.itemsize, f"the value of {key!r}"), dtype=dtype)[0].item()
        return bool(value) if kind == _BOOL else value

    def _string(self, what: str, limit: int) -> str:
        length = self._count(f"the length of {what}", 1)
        if length > limit:
            raise SourceError(f"{self._path}: {what} is {length} bytes long; the file is corrupt")
        # Vocabularies hold byte sequences that are not UTF-8 on their own in rare files: keep them apart, do not fail.
        return str(self._take(length, what), "utf-8", "surrogateescape")

    def _count(self, what: str, unit_bytes: int) -> int:
        """A 64-bit count of things that take at least `unit_bytes` each, so it cannot exceed what is left."""
        count = self._integer("<Q", what)
        if count * unit_bytes > self._file_bytes - self._at:
            raise SourceError(
                f"{self._path}: truncated or corrupt: {what} is {count}, more than the rest of the file can hold"
            )
        return count

    def _integer(self, layout: str, what: str) -> int:
        return int(struct.unpack(layout, self._take(struct.calcsize(layout), what))[0])

    def _take(self, num_bytes: int, what: str) -> memoryview:
        end = self._at + num_bytes
        if end > self._file_bytes:
            raise SourceError(f"{self._path}: truncated: the file ends within {what}; fetch it again")
        view = self._data[self._at : end]
        self._at = end
        return view
