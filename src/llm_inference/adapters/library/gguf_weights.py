"""A GGUF file with the same model and other weights: all matrices in one type, everything else as it was.

OpenVINO GenAI reads GGUF files and keeps their blocks, so the type of the weights is what decides the precision there.
It knows no float32 matrices, and rounds the offsets of Q4_1 blocks to whole steps: what it reads exactly is F16, Q8_0
and Q4_0. Writing one of these from another type is rounding to nearest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import gguf
import numpy as np

WeightType = Literal["F32", "F16", "Q8_0", "Q4_0"]
#: `general.file_type`, without which OpenVINO GenAI does not load a file.
_FILE_TYPES = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
}

_PLAIN: dict[Any, np.dtype[Any]] = {
    gguf.GGMLQuantizationType.F32: np.dtype(np.float32),
    gguf.GGMLQuantizationType.F16: np.dtype(np.float16),
}


def weight_type(path: Path) -> str:
    """The type that most of the weights' bytes are in, such as "Q4_1"."""
    sizes: dict[str, int] = {}
    for tensor in gguf.GGUFReader(path).tensors:
        name = tensor.tensor_type.name
        sizes[name] = sizes.get(name, 0) + int(tensor.n_bytes)
    return max(sizes, key=lambda name: sizes[name])


def rewrite(source: Path, target: Path, wanted: WeightType) -> None:
    """Write `source`'s model to `target` with matrices in `wanted`. One tensor at a time is in memory."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, _text(reader, "general.architecture"))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, inner)
    writer.add_file_type(_FILE_TYPES[wanted])
    types = [_type_of(tensor, wanted) for tensor in reader.tensors]
    for tensor, kind in zip(reader.tensors, types, strict=True):
        shape = tuple(int(size) for size in reversed(tensor.shape))
        plain = _PLAIN.get(kind)
        stored = shape if plain is not None else gguf.quant_shape_to_byte_shape(shape, kind)
        dtype: np.dtype[Any] = plain if plain is not None else np.dtype(np.uint8)
        num_bytes = int(np.prod(stored)) * dtype.itemsize
        writer.add_tensor_info(tensor.name, stored, dtype, num_bytes, None if plain is not None else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor, kind in zip(reader.tensors, types, strict=True):
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        plain = _PLAIN.get(kind)
        writer.write_tensor_data(values.astype(plain) if plain is not None else gguf.quantize(values, kind))
    writer.close()


def _type_of(tensor: Any, wanted: WeightType) -> Any:
    """Matrices whose rows fill whole blocks; what has one dimension stays in float32."""
    kind = gguf.GGMLQuantizationType[wanted]
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    return kind if len(tensor.shape) > 1 and tensor.shape[0] % block == 0 else gguf.GGMLQuantizationType.F32


def _text(reader: Any, name: str) -> str:
    return str(reader.fields[name].contents())
