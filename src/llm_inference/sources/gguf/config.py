"""GGUF metadata → the content of config.json and generation_config.json in the hub's words.

Knows which keys mean what for the architectures that the native engine runs; knows nothing of tensors' data but the
one table that Llama 3.1 keeps its rope scaling in.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.sources.gguf.reader import GgufModel

#: GGUF's architecture → (model_type, architectures[0]). Mistral and SmolLM2 files say "llama": they are one.
ARCHITECTURES: Final = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
}
#: Texts of control tokens that end a turn, whether or not the metadata names them as such.
_TURN_ENDS: Final = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|end_of_text|>", "<end_of_turn>")
_CONTROL: Final = 3
#: (low_freq_factor, high_freq_factor, original_max_position_embeddings) of every Llama 3 release.
_LLAMA3_ROPE: Final = (1.0, 4.0, 8192)


def hf_config(model: GgufModel) -> dict[str, Any]:
    """The content of config.json. Raises `UnsupportedModelError` or `SourceError`."""
    arch = model.architecture
    if arch not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{model.path}: GGUF architecture {arch!r} cannot be converted; known are {', '.join(ARCHITECTURES)}. "
            "Use the model's safetensors instead, or an engine that reads GGUF itself (engine: llamacpp)"
        )
    if model.get(f"{arch}.expert_count", int, 0):
        raise UnsupportedModelError(f"{model.path}: mixture-of-experts models in GGUF cannot be converted")
    model_type, architecture = ARCHITECTURES[arch]
    num_heads = _positive(model, f"{arch}.attention.head_count")
    hidden_size = _positive(model, f"{arch}.embedding_length")
    head_dim = _head_dim(model, arch, hidden_size, num_heads)
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": _positive(model, f"{arch}.feed_forward_length"),
        "num_hidden_layers": _positive(model, f"{arch}.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": model.get(f"{arch}.attention.head_count_kv", int, num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": _positive(model, f"{arch}.context_length"),
        "rms_norm_eps": _short(model.require(f"{arch}.attention.layer_norm_rms_epsilon", float)),
        "rope_theta": _short(model.get(f"{arch}.rope.freq_base", float, 10000.0)),
        "vocab_size": _vocab_size(model),
        "tie_word_embeddings": "output.weight" not in model.tensors,
        "dtype": checkpoint_dtype(model),
    }
    scaling = _rope_scaling(model, arch, head_dim, config["rope_theta"])
    if scaling:
        config["rope_scaling"] = scaling
    if arch == "llama":
        config |= _llama_extras(model, arch)
    config |= token_ids(model)
    # transformers before 5 reads the older key.
    config["torch_dtype"] = config["dtype"]
    return config


def hf_generation_config(model: GgufModel) -> dict[str, Any]:
    """The content of generation_config.json: every id that ends a turn, and the other special ids."""
    ids = token_ids(model)
    ends = [ids["eos_token_id"]] if "eos_token_id" in ids else []
    ends += [
        model.require(f"tokenizer.ggml.{key}_token_id", int)
        for key in ("eot", "eom")
        if f"tokenizer.ggml.{key}_token_id" in model.metadata
    ]
    tokens = model.get("tokenizer.ggml.tokens", list, [])
    types = model.get("tokenizer.ggml.token_type", list, [])
    # Qwen2.5 ends documents with the token that it declares as BOS or pad; elsewhere the token has other uses.
    ends += [
        ids[key]
        for key in ("bos_token_id", "pad_token_id")
        if key in ids and ids[key] < len(tokens) and tokens[ids[key]] == "<|endoftext|>"
    ]
    ends += [
        index
        for index, (token, kind) in enumerate(zip(tokens, types, strict=False))
        if kind == _CONTROL and token in _TURN_ENDS
    ]
    unique = list(dict.fromkeys(ends))
    result: dict[str, Any] = {key: value for key, value in ids.items() if key != "eos_token_id"}
    if unique:
        result["eos_token_id"] = unique[0] if len(unique) == 1 else unique
    return result


def token_ids(model: GgufModel) -> dict[str, int]:
    """BOS, EOS and pad ids as far as the file names them; pad falls back to EOS."""
    num_tokens = len(model.get("tokenizer.ggml.tokens", list, []))
    ids: dict[str, int] = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        value = model.get(f"tokenizer.ggml.{key}_token_id", int, None)
        if value is None:
            continue
        if not 0 <= value < num_tokens:
            raise SourceError(f"{model.path}: tokenizer.ggml.{key}_token_id is {value}, of {num_tokens} tokens")
        ids[f"{name}_token_id"] = value
    if "eos_token_id" in ids:
        ids.setdefault("pad_token_id", ids["eos_token_id"])
    return ids


def checkpoint_dtype(model: GgufModel) -> str:
    """What the matrices are stored as after conversion: their own half type if all share it, else float32."""
    kinds = {info.type_name for info in model.tensors.values() if len(info.shape) > 1}
    return {frozenset({"F16"}): "float16", frozenset({"BF16"}): "bfloat16"}.get(frozenset(kinds), "float32")


def _positive(model: GgufModel, key: str) -> int:
    value = model.require(key, int)
    if value < 1:
        raise SourceError(f"{model.path}: metadata key {key!r} is {value}; it must be positive")
    return int(value)


def _head_dim(model: GgufModel, arch: str, hidden_size: int, num_heads: int) -> int:
    rotary = model.get(f"{arch}.rope.dimension_count", int, None)
    head_dim = model.get(f"{arch}.attention.key_length", int, rotary or hidden_size // num_heads)
    value_dim = model.get(f"{arch}.attention.value_length", int, head_dim)
    if (rotary or head_dim) != head_dim or value_dim != head_dim or head_dim < 2 or head_dim % 2:
        raise UnsupportedModelError(
            f"{model.path}: heads of {head_dim} for keys, {value_dim} for values, {rotary} rotated; "
            "they must be equal and even"
        )
    return int(head_dim)


def _vocab_size(model: GgufModel) -> int:
    embedding = model.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise SourceError(f"{model.path}: the tensor token_embd.weight is missing; the file holds no whole model")
    return embedding.shape[0]


def _llama_extras(model: GgufModel, arch: str) -> dict[str, Any]:
    """Biases, which Llama has all or none of, and the window that makes a Mistral of it."""
    attention_bias = "blk.0.attn_q.bias" in model.tensors
    if attention_bias and "blk.0.attn_output.bias" not in model.tensors:
        raise UnsupportedModelError(f"{model.path}: biases on q, k and v without one on the output projection")
    extras: dict[str, Any] = {"attention_bias": attention_bias, "mlp_bias": "blk.0.ffn_gate.bias" in model.tensors}
    window = model.get(f"{arch}.attention.sliding_window", int, 0)
    if window:
        extras = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}
    return extras


def _rope_scaling(model: GgufModel, arch: str, head_dim: int, theta: float) -> dict[str, Any] | None:
    if "rope_freqs.weight" in model.tensors:
        return _llama3_scaling(model, head_dim, theta)
    kind = model.get(f"{arch}.rope.scaling.type", str, "none")
    factor = model.get(f"{arch}.rope.scaling.factor", float, None)
    if factor is None:
        legacy = model.get(f"{arch}.rope.scale_linear", float, 1.0)
        kind, factor = ("linear", legacy) if legacy != 1.0 else ("none", 1.0)
    if kind == "none" or factor in (0.0, 1.0):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise UnsupportedModelError(f"{model.path}: rope scaling {kind!r} cannot be converted; linear and yarn can")
    scaling: dict[str, Any] = {"rope_type": "yarn", "factor": factor}
    original = model.get(f"{arch}.rope.scaling.original_context_length", int, None)
    if original:
        scaling["original_max_position_embeddings"] = original
    for key, name in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        value = model.get(f"{arch}.rope.scaling.{key}", float, None)
        if value is not None:
            scaling[name] = value
    return scaling


def _llama3_scaling(model: GgufModel, head_dim: int, theta: float) -> dict[str, Any]:
    """Llama 3.1 keeps a divisor per frequency. Find the parameters that give them, or refuse."""
    info = model.tensors["rope_freqs.weight"]
    if info.type_name != "F32" or info.shape != (head_dim // 2,):
        raise SourceError(f"{model.path}: rope_freqs.weight must hold {head_dim // 2} float32 values")
    divisors = model.rows(info).view(np.float32).reshape(-1)
    factor = float(divisors.max())
    low, high, original = _LLAMA3_ROPE
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    expected = 1.0 / ((1.0 - smooth) / factor + smooth)
    if not np.allclose(divisors, expected, rtol=1e-4):
        raise UnsupportedModelError(f"{model.path}: rope_freqs.weight holds divisors that no known rope scaling gives")
    return {
        "rope_type": "llama3",
        "factor": _short(factor),
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _short(value: float) -> float:
    """The shortest decimal that the stored float32 stands for: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))
