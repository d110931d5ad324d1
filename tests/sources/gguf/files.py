"""Tiny GGUF files, written by the `gguf` package's own writer: an independent hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

HIDDEN, LAYERS, HEADS, KV_HEADS, INNER, CONTEXT = 64, 2, 4, 2, 96, 128
#: A byte-level vocabulary: control tokens, then the 256 letters that stand for bytes, then merged ones.
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_letters() -> list[str]:
    """GPT-2's letters for the 256 bytes, in the order of the bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [table[byte] for byte in range(256)]


MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2"]
TOKENS = [*SPECIALS, *byte_letters(), *(merge.replace(" ", "") for merge in MERGES)]
TYPES = [3] * len(SPECIALS) + [1] * (len(TOKENS) - len(SPECIALS))


def llama_tensors(seed: int = 0, *, tied: bool = True, bias: bool = False) -> dict[str, npt.NDArray[np.float32]]:
    """Random weights of a tiny Llama under the hub's names."""
    random = np.random.default_rng(seed)
    head_dim = HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (len(TOKENS), HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    if not tied:
        shapes["lm_head.weight"] = (len(TOKENS), HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (HIDDEN,),
            prefix + "post_attention_layernorm.weight": (HIDDEN,),
            prefix + "self_attn.q_proj.weight": (HEADS * head_dim, HIDDEN),
            prefix + "self_attn.k_proj.weight": (KV_HEADS * head_dim, HIDDEN),
            prefix + "self_attn.v_proj.weight": (KV_HEADS * head_dim, HIDDEN),
            prefix + "self_attn.o_proj.weight": (HIDDEN, HEADS * head_dim),
            prefix + "mlp.gate_proj.weight": (INNER, HIDDEN),
            prefix + "mlp.up_proj.weight": (INNER, HIDDEN),
            prefix + "mlp.down_proj.weight": (HIDDEN, INNER),
        }
        if bias:
            shapes |= {
                prefix + f"self_attn.{part}_proj.bias": (heads * head_dim,)
                for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS), ("o", HEADS))
            }
    return {name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}


def to_gguf_names(tensors: dict[str, npt.NDArray[np.float32]], arch: str) -> dict[str, npt.NDArray[np.float32]]:
    """Renamed by the `gguf` package's own table, q and k rows interleaved as its rotary order wants for Llama."""
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], LAYERS)
    result = {}
    for name, value in tensors.items():
        stem, _, suffix = name.rpartition(".")
        heads = HEADS if ".q_proj" in name else KV_HEADS if ".k_proj" in name else 0
        if heads and arch == "llama":
            half = value.shape[0] // heads // 2
            value = value.reshape(heads, 2, half, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
        renamed = table.get_name(stem)
        assert renamed is not None
        result[f"{renamed}.{suffix}"] = np.ascontiguousarray(value)
    return result


def write_tiny_llama(
    path: Path,
    *,
    arch: str = "llama",
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    tensors: dict[str, npt.NDArray[np.float32]] | None = None,
    extra: dict[str, npt.NDArray[np.float32]] | None = None,
    metadata: Callable[[gguf.GGUFWriter], object] = lambda _: None,
    tokenizer: Callable[[gguf.GGUFWriter], object] | None = None,
    **writer_options: Any,
) -> Path:
    """A whole model. Matrices are quantized, vectors stay float32, as llama.cpp does it."""
    writer = gguf.GGUFWriter(path, arch, **writer_options)
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    (tokenizer or add_byte_level_tokenizer)(writer)
    metadata(writer)
    for name, value in (to_gguf_names(tensors or llama_tensors(), arch) | (extra or {})).items():
        if value.ndim > 1 and quantization != gguf.GGMLQuantizationType.F32:
            packed = gguf.quantize(value, quantization)
            writer.add_tensor(name, packed, raw_dtype=quantization)
        else:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_byte_level_tokenizer(writer: gguf.GGUFWriter, pre: str = "smollm") -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types(TYPES)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
