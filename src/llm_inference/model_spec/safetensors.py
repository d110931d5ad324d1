"""Headers of safetensors files: names, types and shapes of tensors without their data.

    8 bytes: header length N | N bytes: JSON {name: {dtype, shape, data_offsets: [begin, end]}} | data

Also proves that a file is whole: the data must be exactly as long as the header says.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from llm_inference.errors import SourceError
from llm_inference.model_spec.fields import JsonFields

INDEX_NAME: Final = "model.safetensors.index.json"
#: The format's own limit.
_MAX_HEADER_BYTES: Final = 100_000_000
_BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor of a file. `dtype` is in the format's own words (F32, BF16, …)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files that make up the model, sorted: those of the index, else model.safetensors, else all.

    Repositories carry the same weights twice (`consolidated.safetensors`); counting both would be wrong. Files that the
    index names may be absent: `verify` of the sources says so. Raises `SourceError` for a malformed index.
    """
    index = directory / INDEX_NAME
    if index.exists():
        return sorted(directory / name for name in set(read_weight_map(index).values()))
    single = directory / "model.safetensors"
    return [single] if single.exists() else sorted(directory.glob("*.safetensors"))


def read_weight_map(path: Path) -> dict[str, str]:
    """Tensor name → file name of an index (of safetensors or of pickles). Raises `SourceError`."""
    section = JsonFields.read(path).section("weight_map")
    if section is None or not section.content:
        raise SourceError(f"{path}: has no 'weight_map'")
    for tensor, name in section.content.items():
        if not isinstance(name, str) or Path(name).name != name:
            raise SourceError(f"{path}: tensor {tensor!r} is placed in {name!r}, which is no file name")
    return section.content


def read_safetensors_header(path: Path) -> dict[str, TensorHeader]:
    """All tensors of one file. Raises `SourceError` naming it when it is cut, padded or malformed."""
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = int.from_bytes(start, "little")
            if start.startswith(b"version "):
                raise SourceError(f"{path}: a Git LFS pointer, not the file itself; run `git lfs pull`")
            if file_bytes < 8 or length > file_bytes - 8:
                raise SourceError(f"{path}: truncated within its header ({file_bytes} bytes); fetch it again")
            if length > _MAX_HEADER_BYTES:
                raise SourceError(f"{path}: corrupt: a header of {length} bytes")
            encoded = file.read(length)
    except FileNotFoundError as error:
        raise SourceError(f"{path} is missing") from error
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        header = json.loads(encoded)
        if not isinstance(header, dict):
            raise ValueError("not an object")
        tensors = {name: _entry(name, value) for name, value in header.items() if name != "__metadata__"}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SourceError(f"{path}: corrupt header: {error}; fetch it again") from error
    at = 0
    for tensor, begin, end in sorted(tensors.values(), key=lambda item: item[1:]):
        if begin != at or end - begin != tensor.num_bytes:
            raise SourceError(f"{path}: corrupt header: the place of tensor {tensor.name!r} does not fit its shape")
        at = end
    if at != file_bytes - 8 - length:
        what = "truncated" if at > file_bytes - 8 - length else "longer than its header says"
        raise SourceError(
            f"{path}: {what}: {at} bytes of data expected, {file_bytes - 8 - length} found; fetch it again"
        )
    return {name: tensor for name, (tensor, _, _) in tensors.items()}


def _entry(name: str, value: Any) -> tuple[TensorHeader, int, int]:
    dtype, shape, (begin, end) = value["dtype"], value["shape"], value["data_offsets"]
    if dtype not in _BITS:
        raise ValueError(f"tensor {name!r} has the unknown type {dtype!r}")
    numbers = [*shape, begin, end]
    if not all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers):
        raise ValueError(f"tensor {name!r} has a malformed shape or place")
    return TensorHeader(name, dtype, tuple(shape), math.prod(shape) * _BITS[dtype] // 8), begin, end
