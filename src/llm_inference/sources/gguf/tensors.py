"""GGUF tensors → safetensors files: renamed, rows put back in order, dequantized, streamed.

One tensor is in work at a time and of it one slice of rows, so memory stays flat whatever the model's size. Half types
and float32 keep their type; everything quantized becomes float32. Knows nothing of configs, tokenizers or caches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.sources.gguf.reader import GgufModel, TensorInfo

#: Values dequantized at once: 64 MiB as float32.
_SLICE_VALUES: Final = 16 * 1024 * 1024
MAX_SHARD_BYTES: Final = 4_000_000_000

_GLOBAL_NAMES: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
#: Read by `config`, no weight.
_NOT_WEIGHTS: Final = frozenset({"rope_freqs.weight"})
_LAYER: Final = re.compile(r"^blk\.(?P<layer>\d+)\.(?P<part>\w+)\.(?P<kind>weight|bias)$")
_OWN_TYPES: Final = {"F32": ("F32", 4), "F16": ("F16", 2), "BF16": ("BF16", 2)}


@dataclass(frozen=True, slots=True)
class _Planned:
    """One tensor on its way: source, new name, safetensors type, size, and the heads to put its rows in order by."""

    info: TensorInfo
    name: str
    dtype: str
    num_bytes: int
    heads: int | None


def hf_name(gguf_name: str) -> str | None:
    """The hub's name of a Llama-family tensor; None for what is no weight. Raises `UnsupportedModelError`."""
    if gguf_name in _NOT_WEIGHTS:
        return None
    if gguf_name in _GLOBAL_NAMES:
        return _GLOBAL_NAMES[gguf_name]
    match = _LAYER.match(gguf_name)
    if match is None or match["part"] not in _LAYER_NAMES:
        raise UnsupportedModelError(f"GGUF tensor {gguf_name!r} has no place in this architecture")
    return f"model.layers.{match['layer']}.{_LAYER_NAMES[match['part']]}.{match['kind']}"


def write_safetensors(
    model: GgufModel,
    directory: Path,
    *,
    num_heads: int,
    num_kv_heads: int,
    permuted: bool,
    on_bytes: Callable[[int], object] = lambda _: None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write all weights into `directory`, as one file or as shards with an index.

    `permuted`: q and k rows lie in GGUF's interleaved rotary order (architecture llama) and are put back. `on_bytes` is
    called with the number of bytes read from the source, slice by slice.
    """
    planned = _plan(model, num_heads, num_kv_heads, permuted)
    shards: list[list[_Planned]] = [[]]
    for item in planned:
        if shards[-1] and sum(other.num_bytes for other in shards[-1]) + item.num_bytes > max_shard_bytes:
            shards.append([])
        shards[-1].append(item)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = "model.safetensors"
        if len(shards) > 1:
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        with (directory / name).open("wb") as file:
            _write_shard(model, shard, file, on_bytes)
        weight_map |= {item.name: name for item in shard}
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(item.num_bytes for item in planned)}, "weight_map": weight_map}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")


def converted_bytes(model: GgufModel) -> int:
    """Bytes that the weights will take on disk."""
    return sum(item.num_bytes for item in _plan(model, 1, 1, permuted=False))


def _plan(model: GgufModel, num_heads: int, num_kv_heads: int, permuted: bool) -> list[_Planned]:
    planned = []
    for info in model.tensors.values():
        try:
            name = hf_name(info.name)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{info.file}: {error.message}") from error
        if name is None:
            continue
        heads = None
        if permuted and ".attn_q." in info.name:
            heads = num_heads
        elif permuted and ".attn_k." in info.name:
            heads = num_kv_heads
        num_values = int(np.prod(info.shape, dtype=np.int64))
        dtype, width = _OWN_TYPES.get(info.type_name, ("F32", 4))
        planned.append(_Planned(info, name, dtype, num_values * width, heads))
    if not planned:
        raise SourceError(f"{model.path}: holds no tensors (a vocabulary-only file?); it is no model")
    return planned


def _write_shard(model: GgufModel, shard: list[_Planned], file: BinaryIO, on_bytes: Callable[[int], object]) -> None:
    """The safetensors layout: 8 bytes of header length, the JSON header padded to 8, then the data without gaps."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for item in shard:
        shape = list(item.info.shape)
        header[item.name] = {"dtype": item.dtype, "shape": shape, "data_offsets": [at, at + item.num_bytes]}
        at += item.num_bytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    file.write(len(encoded).to_bytes(8, "little") + encoded)
    for item in shard:
        for piece in _pieces(model, item, on_bytes):
            file.write(piece.data)


def _pieces(model: GgufModel, item: _Planned, on_bytes: Callable[[int], object]) -> Iterator[npt.NDArray[Any]]:
    """The tensor's final bytes, slice by slice."""
    rows = model.rows(item.info)
    order = None
    # A bias lies in one row: what is put in order are then its values.
    if item.heads is not None:
        if len(item.info.shape) == 1:
            rows = rows.reshape(item.info.shape[0], -1)
        order = _rotary_order(rows.shape[0], item.heads, item.info)
    values_per_row = item.num_bytes // (_OWN_TYPES.get(item.info.type_name, ("F32", 4))[1] * rows.shape[0])
    step = max(1, _SLICE_VALUES // values_per_row)
    for start in range(0, rows.shape[0], step):
        piece = rows[start : start + step] if order is None else rows[order[start : start + step]]
        on_bytes(piece.nbytes)
        if item.info.type_name in _OWN_TYPES:
            yield np.ascontiguousarray(piece)
        else:
            yield np.ascontiguousarray(_dequantize(piece, item.info), dtype=np.float32)


def _dequantize(piece: npt.NDArray[np.uint8], info: TensorInfo) -> npt.NDArray[Any]:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    try:
        return np.asarray(dequantize(np.ascontiguousarray(piece), GGMLQuantizationType[info.type_name]))
    except NotImplementedError as error:
        raise UnsupportedModelError(
            f"{info.file}: tensor {info.name!r} is quantized as {info.type_name}, which cannot be decoded here"
        ) from error


def _rotary_order(num_rows: int, heads: int, info: TensorInfo) -> npt.NDArray[np.int64]:
    """Indices of GGUF's rows in the hub's order.

    GGUF pairs neighbours (row 2i with 2i+1 of a head are rotated together); the hub pairs halves (i with i + d/2).
    """
    if heads < 1 or num_rows % (2 * heads):
        raise SourceError(f"{info.file}: tensor {info.name!r} has {num_rows} rows, which {heads} heads cannot share")
    index = np.arange(num_rows, dtype=np.int64).reshape(heads, num_rows // heads // 2, 2)
    order: npt.NDArray[np.int64] = index.swapaxes(1, 2).reshape(-1)
    return order
