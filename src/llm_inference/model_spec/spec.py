"""`ModelSpec`: the shapes and sizes of a model, from config.json and the headers of its safetensors files."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.model_spec.encoder import ENCODER_MODEL_TYPES, encoder_parameters, in_common_words
from llm_inference.model_spec.fields import JsonFields
from llm_inference.model_spec.rope import RopeSpec
from llm_inference.model_spec.safetensors import TensorHeader, read_safetensors_header, weight_files

#: Bytes of one value, by our names and by those of safetensors headers.
DTYPE_BYTES: Final[dict[str, float]] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8": 1, "int8": 1, "int4": 0.5,
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1,
}  # fmt: skip
_HEADER_DTYPES: Final = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
#: Model types whose config this module was written for; others pass if their config has the same keys.
KNOWN_MODEL_TYPES: Final = ("llama", "mistral", "qwen2", *ENCODER_MODEL_TYPES)
#: Families whose q, k and v projections carry a bias without the config saying so.
_BIASED_QKV: Final = ("qwen2", "qwen2_moe")


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model's facts, frozen. Sizes are in elements unless they say bytes.

    `sliding_window` is None unless the model really uses one. `num_parameters` counts tied embeddings once.
    `checkpoint_bytes` is what the weights take on disk.
    """

    architecture: str
    model_type: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    dtype: str
    num_parameters: int
    checkpoint_bytes: int
    rms_norm_eps: float
    rope: RopeSpec
    hidden_act: str
    qkv_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    sliding_window: int | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    quantization_config: dict[str, Any] | None

    @classmethod
    def from_directory(cls, directory: Path) -> ModelSpec:
        """Read `directory`. No weight is loaded and no pickle opened. Raises `SourceError` naming file and key, or
        `UnsupportedModelError` when the config speaks neither of a decoder of the Llama kind nor of an encoder.
        """
        config = JsonFields.read(directory / "config.json")
        if not config.has("hidden_size") and config.content.get("model_type") not in KNOWN_MODEL_TYPES:
            raise UnsupportedModelError(
                f"{config.path}: models of type {config.content.get('model_type')!r} are not known; "
                f"known are {', '.join(KNOWN_MODEL_TYPES)} and models described in the same words"
            )
        if config.content.get("model_type") in ENCODER_MODEL_TYPES:
            config = in_common_words(config)
        tensors: dict[str, TensorHeader] = {}
        for path in weight_files(directory):
            tensors |= read_safetensors_header(path)
        return cls._from_config(config, tensors, directory)

    @classmethod
    def _from_config(cls, config: JsonFields, tensors: dict[str, TensorHeader], directory: Path) -> ModelSpec:
        architectures = config.texts("architectures")
        model_type = config.text("model_type")
        hidden_size = config.integer("hidden_size")
        num_heads = config.integer("num_attention_heads")
        num_kv_heads = config.integer("num_key_value_heads", num_heads)
        if not config.has("head_dim") and hidden_size % num_heads:
            raise SourceError(
                f"{config.path}: 'hidden_size' {hidden_size} is no multiple of 'num_attention_heads' {num_heads}"
            )
        if num_heads % num_kv_heads:
            raise SourceError(
                f"{config.path}: 'num_attention_heads' {num_heads} is no multiple of 'num_key_value_heads' "
                f"{num_kv_heads}"
            )
        rope = RopeSpec.from_config(config)
        quantization = config.section("quantization_config")
        attention_bias = config.boolean("attention_bias", False)
        shape: dict[str, Any] = {
            "architecture": architectures[0] if architectures else "",
            "model_type": model_type,
            "num_layers": config.integer("num_hidden_layers"),
            "hidden_size": hidden_size,
            "intermediate_size": config.integer("intermediate_size"),
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "head_dim": config.integer("head_dim", hidden_size // num_heads),
            "vocab_size": config.integer("vocab_size"),
            "tie_word_embeddings": config.boolean("tie_word_embeddings", False),
            "qkv_bias": attention_bias or model_type in _BIASED_QKV,
            "attention_output_bias": attention_bias,
            "mlp_bias": config.boolean("mlp_bias", False),
        }
        num_positions = config.integer("max_position_embeddings")
        is_encoder = model_type in ENCODER_MODEL_TYPES
        computed = encoder_parameters(shape, num_positions) if is_encoder else _llama_parameters(shape)
        bos = config.token_ids("bos_token_id")
        dtype = _dtype(config, tensors)
        return cls(
            **shape,
            max_position_embeddings=rope.max_positions(num_positions),
            dtype=dtype,
            num_parameters=_count(tensors, shape["tie_word_embeddings"]) if tensors and not quantization else computed,
            checkpoint_bytes=_checkpoint_bytes(tensors, directory),
            rms_norm_eps=config.number("rms_norm_eps", 1e-6),
            rope=rope,
            hidden_act=config.text("hidden_act", "silu"),
            sliding_window=_sliding_window(config, model_type),
            bos_token_id=bos[0] if bos else None,
            eos_token_ids=config.token_ids("eos_token_id"),
            quantization_config=quantization.content if quantization else None,
        )

    def weight_bytes(self, dtype: str | None = None) -> int:
        """`num_parameters × bytes(dtype)`; without a dtype, what the checkpoint takes as it is.

        int8 and int4 are the matrices' values alone: scales add 1–6 %, and embeddings may stay wider.
        """
        if dtype is None:
            return self.checkpoint_bytes
        return math.ceil(self.num_parameters * _bytes_of(dtype))

    def kv_bytes_per_token(self, dtype: str | None = None) -> int:
        """`2 (keys, values) × num_layers × num_kv_heads × head_dim × bytes(dtype)`."""
        return math.ceil(2 * self.num_layers * self.num_kv_heads * self.head_dim * _bytes_of(dtype or self.dtype))

    @property
    def context_that_doubles_cost(self) -> int | None:
        """The context at which a token's attention takes as many operations as its layers' matrices.

        A layer of `P` weights takes `2P` operations a token, attention to `c` tokens `4 · num_heads · head_dim · c`; so
        `c = P / (2 · num_heads · head_dim)`. None with a sliding window, which bounds what attention costs.
        """
        if self.sliding_window is not None:
            return None
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        weights = self.hidden_size * (2 * q + 2 * kv + 3 * self.intermediate_size)
        return max(weights // (2 * q), 1)


def _bytes_of(dtype: str) -> float:
    if dtype not in DTYPE_BYTES:
        raise SourceError(f"unknown dtype {dtype!r}; known are {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]


def _dtype(config: JsonFields, tensors: dict[str, TensorHeader]) -> str:
    """What the config says (`dtype`, before transformers 5 `torch_dtype`), else what most values are stored as."""
    for key in ("dtype", "torch_dtype"):
        if config.has(key):
            name = config.text(key).removeprefix("torch.")
            if name not in _HEADER_DTYPES.values():
                raise SourceError(f"{config.path}: {key!r} is {name!r}; known are {', '.join(_HEADER_DTYPES.values())}")
            return name
    totals: dict[str, int] = {}
    for tensor in tensors.values():
        if tensor.dtype in _HEADER_DTYPES:
            totals[tensor.dtype] = totals.get(tensor.dtype, 0) + tensor.num_values
    return _HEADER_DTYPES[max(totals, key=lambda name: totals[name])] if totals else "float32"


def _count(tensors: dict[str, TensorHeader], tied: bool) -> int:
    """Values of all floating tensors; a stored copy of tied embeddings and rotary tables are not parameters."""
    return sum(
        tensor.num_values
        for name, tensor in tensors.items()
        if tensor.dtype in _HEADER_DTYPES
        and not name.endswith("rotary_emb.inv_freq")
        and not (tied and name == "lm_head.weight")
    )


def _checkpoint_bytes(tensors: dict[str, TensorHeader], directory: Path) -> int:
    if tensors:
        return sum(tensor.num_bytes for tensor in tensors.values())
    return sum(path.stat().st_size for pattern in ("*.bin", "*.pt", "*.pth") for path in directory.glob(pattern))


def _llama_parameters(shape: dict[str, Any]) -> int:
    """Parameters of a Llama-family decoder by its shapes alone.

    `V·h` embeddings (twice untied) `+ h + L · (2h + h·(q + 2kv) + q·h + 3·h·f + biases)`; q, kv are heads × head_dim.
    """
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    q, kv = shape["num_heads"] * shape["head_dim"], shape["num_kv_heads"] * shape["head_dim"]
    layer = 2 * hidden + hidden * (q + 2 * kv) + q * hidden + 3 * hidden * inner
    layer += (q + 2 * kv) * shape["qkv_bias"] + hidden * shape["attention_output_bias"]
    layer += (2 * inner + hidden) * shape["mlp_bias"]
    embeddings = shape["vocab_size"] * hidden * (1 if shape["tie_word_embeddings"] else 2)
    return int(embeddings + hidden + shape["num_layers"] * layer)


def _sliding_window(config: JsonFields, model_type: str) -> int | None:
    """The window in tokens. Qwen2 states one and switches it off with `use_sliding_window`."""
    window = config.optional_integer("sliding_window")
    uses = config.boolean("use_sliding_window", not model_type.startswith("qwen2"))
    return window if uses else None
