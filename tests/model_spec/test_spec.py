from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.model_spec import ModelSpec
from tests.model_spec.files import write_config, write_index, write_weights


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("kind", "extra"),
    [
        ("Llama", {}),
        ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 8}),
        ("Mistral", {"sliding_window": 64}),
        ("Qwen2", {}),
    ],
)
def test_parameters_and_sizes_equal_those_of_the_real_model(
    tmp_path: Path, kind: str, extra: dict[str, Any], tied: bool
) -> None:
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=128, tie_word_embeddings=tied, dtype="bfloat16", **extra,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(torch.bfloat16)
    config.save_pretrained(tmp_path)
    expected = sum(parameter.numel() for parameter in model.parameters())

    spec = ModelSpec.from_directory(tmp_path)

    assert spec.num_parameters == expected
    assert spec.weight_bytes("float32") == 4 * expected
    assert spec.weight_bytes("int4") == expected // 2
    assert spec.model_type == kind.lower()
    assert spec.dtype == "bfloat16"
    assert spec.head_dim == extra.get("head_dim", 16)
    assert spec.qkv_bias == (model.model.layers[0].self_attn.q_proj.bias is not None)
    assert spec.attention_output_bias == (model.model.layers[0].self_attn.o_proj.bias is not None)
    assert spec.mlp_bias == (getattr(model.model.layers[0].mlp.gate_proj, "bias", None) is not None)
    assert spec.sliding_window == extra.get("sliding_window")
    # At that context, attention's two products take what the layer's matrices take.
    weights = sum(parameter.numel() for parameter in model.model.layers[0].parameters() if parameter.ndim == 2)
    if spec.sliding_window is None:
        assert spec.context_that_doubles_cost == 2 * weights // (4 * model.config.num_attention_heads * spec.head_dim)
    else:
        assert spec.context_that_doubles_cost is None
    # One layer's keys and values of one token, as the model itself makes them.
    cache = model(torch.tensor([[1]])).past_key_values
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert spec.kv_bytes_per_token() == held
    model.save_pretrained(tmp_path)
    saved = ModelSpec.from_directory(tmp_path)
    assert saved.num_parameters == expected
    assert saved.architecture == f"{kind}ForCausalLM"
    assert saved.weight_bytes() == 2 * expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_attention_heads", "abc"),
        ("num_attention_heads", True),
        ("num_hidden_layers", 0),
        ("hidden_size", -64),
        ("vocab_size", 1.5),
        ("rms_norm_eps", "tiny"),
        ("rope_theta", [1]),
        ("tie_word_embeddings", "yes"),
        ("architectures", "LlamaForCausalLM"),
        ("rope_scaling", "linear"),
        ("eos_token_id", -1),
        ("torch_dtype", "float3"),
        ("num_key_value_heads", 3),
        ("hidden_size", 66),
        ("quantization_config", 4),
    ],
)
def test_a_malformed_value_names_file_and_key(tmp_path: Path, key: str, value: object) -> None:
    write_config(tmp_path, **{key: value})
    with pytest.raises(SourceError) as caught:
        ModelSpec.from_directory(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)
    assert f"'{key}'" in str(caught.value)


def test_a_missing_key_is_named_and_null_counts_as_missing(tmp_path: Path) -> None:
    for value in (..., None):
        write_config(tmp_path, vocab_size=value)
        with pytest.raises(SourceError, match="'vocab_size' is missing"):
            ModelSpec.from_directory(tmp_path)


def test_another_kind_of_model_is_unsupported_rather_than_broken(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 64}))
    with pytest.raises(UnsupportedModelError, match="'gpt2'"):
        ModelSpec.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}, None),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True}, 64),
        ({"model_type": "qwen2", "sliding_window": 64}, None),
        ({"model_type": "mistral", "sliding_window": 64}, 64),
        ({"model_type": "mistral", "sliding_window": None}, None),
    ],
)
def test_sliding_window_counts_only_where_it_is_used(
    tmp_path: Path, changes: dict[str, Any], expected: int | None
) -> None:
    assert ModelSpec.from_directory(write_config(tmp_path, **changes)).sliding_window == expected


def test_dtype_falls_back_to_what_the_weights_are(tmp_path: Path) -> None:
    write_config(tmp_path)
    write_weights(tmp_path, {"model.safetensors": ["a"]})
    assert ModelSpec.from_directory(tmp_path).dtype == "float32"
    write_config(tmp_path, torch_dtype="float16")
    assert ModelSpec.from_directory(tmp_path).dtype == "float16"
    write_config(tmp_path, dtype="bfloat16", torch_dtype="float16")
    assert ModelSpec.from_directory(tmp_path).dtype == "bfloat16"


def test_weights_are_counted_once_whatever_lies_beside_them(tmp_path: Path) -> None:
    write_config(tmp_path, tie_word_embeddings=True)
    shards = {"model-00001-of-00002.safetensors": ["a", "lm_head.weight"], "model-00002-of-00002.safetensors": ["b"]}
    write_weights(tmp_path, shards | {"consolidated.safetensors": ["c", "d"]})
    write_index(tmp_path, {tensor: file for file, tensors in shards.items() for tensor in tensors})
    spec = ModelSpec.from_directory(tmp_path)
    assert spec.num_parameters == 2 * 16  # the tied head is a copy
    assert spec.checkpoint_bytes == 3 * 64


def test_quantized_checkpoints_count_the_parameters_by_shape(tmp_path: Path) -> None:
    plain = ModelSpec.from_directory(write_config(tmp_path)).num_parameters
    write_weights(tmp_path, {"model.safetensors": ["packed"]})
    write_config(tmp_path, quantization_config={"quant_method": "awq", "bits": 4})
    spec = ModelSpec.from_directory(tmp_path)
    assert spec.num_parameters == plain
    assert spec.quantization_config == {"quant_method": "awq", "bits": 4}
    assert spec.weight_bytes() == 64


def test_pickles_are_weighed_by_their_size(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 1000)
    assert ModelSpec.from_directory(tmp_path).weight_bytes() == 1000


def test_unknown_dtype_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="unknown dtype 'int3'"):
        ModelSpec.from_directory(write_config(tmp_path)).weight_bytes("int3")


def test_default_model(default_model_dir: Path) -> None:
    spec = ModelSpec.from_directory(default_model_dir)
    assert (spec.num_layers, spec.hidden_size, spec.num_heads, spec.num_kv_heads) == (30, 576, 9, 3)
    assert spec.num_parameters == 134_515_008
    assert spec.kv_bytes_per_token("float32") == 2 * 30 * 3 * 64 * 4
    assert spec.max_position_embeddings == 8192
    assert spec.eos_token_ids == (2,)
