from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.sources.gguf.config import hf_config, hf_generation_config
from llm_inference.sources.gguf.reader import open_gguf
from tests.sources.gguf.files import (
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    LAYERS,
    TOKENS,
    TYPES,
    add_byte_level_tokenizer,
    llama_tensors,
    write_tiny_llama,
)


def config_of(path: Path, **options: Any) -> dict[str, Any]:
    return hf_config(open_gguf(write_tiny_llama(path / "m.gguf", **options)))


def test_llama(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    assert config == {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HIDDEN // HEADS, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "vocab_size": len(TOKENS), "tie_word_embeddings": True,
        "dtype": "float32", "torch_dtype": "float32", "attention_bias": False, "mlp_bias": False,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
    }  # fmt: skip


def test_variants(tmp_path: Path) -> None:
    assert config_of(tmp_path, tensors=llama_tensors(tied=False))["tie_word_embeddings"] is False
    assert config_of(tmp_path, tensors=llama_tensors(bias=True))["attention_bias"] is True
    assert config_of(tmp_path, quantization=gguf.GGMLQuantizationType.F16)["dtype"] == "float16"
    assert config_of(tmp_path, quantization=gguf.GGMLQuantizationType.BF16)["dtype"] == "bfloat16"
    assert config_of(tmp_path, quantization=gguf.GGMLQuantizationType.Q8_0)["dtype"] == "float32"
    qwen = config_of(tmp_path, arch="qwen2")
    assert (qwen["model_type"], qwen["architectures"]) == ("qwen2", ["Qwen2ForCausalLM"])
    window = config_of(tmp_path, metadata=lambda writer: writer.add_sliding_window(32))
    assert (window["model_type"], window["sliding_window"]) == ("mistral", 32)


def test_simple_rope_scalings(tmp_path: Path) -> None:
    def linear(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    def yarn(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(8.0)
        writer.add_rope_scaling_orig_ctx_len(64)

    def longrope(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_rope_scaling_factor(8.0)

    assert config_of(tmp_path, metadata=linear)["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert config_of(tmp_path, metadata=yarn)["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 64,
    }
    legacy = config_of(tmp_path, metadata=lambda writer: writer.add_float32("llama.rope.scale_linear", 2.0))
    assert legacy["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    with pytest.raises(UnsupportedModelError, match="rope scaling 'longrope'"):
        config_of(tmp_path, metadata=longrope)


def llama3_divisors(theta: float, dim: int, factor: float) -> np.ndarray:
    """transformers' own frequencies, unscaled over scaled: what llama.cpp's converter stores."""
    config = LlamaConfig(
        hidden_size=dim, num_attention_heads=1, max_position_embeddings=131072,
        rope_parameters={
            "rope_theta": theta, "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
    )  # fmt: skip
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1.0 / theta ** (np.arange(0, dim, 2) / dim)
    return (plain / scaled.double().numpy()).astype(np.float32)


def test_llama3_scaling_is_recovered_from_its_divisors(tmp_path: Path) -> None:
    divisors = llama3_divisors(10000.0, HIDDEN // HEADS, 32.0)
    assert divisors.max() == pytest.approx(32.0)
    config = config_of(tmp_path, extra={"rope_freqs.weight": divisors})
    assert config["rope_scaling"] == {
        "rope_type": "llama3", "factor": pytest.approx(32.0, rel=1e-5), "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    assert math.isclose(config["rope_scaling"]["factor"], 32.0, rel_tol=1e-5)
    with pytest.raises(UnsupportedModelError, match="no known rope scaling"):
        config_of(tmp_path, extra={"rope_freqs.weight": divisors[::-1].copy()})
    with pytest.raises(SourceError, match="must hold 8 float32 values"):
        config_of(tmp_path, extra={"rope_freqs.weight": divisors[:4]})


def test_generation_config_knows_every_end_of_turn(tmp_path: Path) -> None:
    def generation(**options: Any) -> dict[str, Any]:
        return hf_generation_config(open_gguf(write_tiny_llama(tmp_path / "m.gguf", **options)))

    assert generation() == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}

    def base(writer: gguf.GGUFWriter) -> None:
        add_byte_level_tokenizer(writer)
        writer.add_eot_token_id(50)

    assert generation(tokenizer=base)["eos_token_id"] == [2, 50]

    def qwen(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(TOKENS)
        writer.add_token_types(TYPES)
        writer.add_eos_token_id(2)
        writer.add_pad_token_id(0)

    # The document's end that the file names as pad ends a turn as well (Qwen2.5's own generation_config says so).
    assert generation(tokenizer=qwen)["eos_token_id"] == [2, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda writer: writer.add_expert_count(8), "mixture-of-experts"),
        (lambda writer: writer.add_rope_dimension_count(8), "must be equal and even|rotated"),
        (lambda writer: writer.add_key_length(15), "must be equal and even"),
    ],
)
def test_what_cannot_be_said_in_a_config(tmp_path: Path, change: Any, message: str) -> None:
    if message.startswith("must be equal and even|"):
        path = write_tiny_llama(tmp_path / "m.gguf", metadata=lambda w: (w.add_key_length(16), change(w)))
    else:
        path = write_tiny_llama(tmp_path / "m.gguf", metadata=change)
    with pytest.raises(UnsupportedModelError, match=message):
        hf_config(open_gguf(path))


def test_incomplete_files(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(
        UnsupportedModelError, match=r"architecture 'mamba' cannot be converted; known are llama, qwen2"
    ):
        hf_config(open_gguf(tmp_path / "a.gguf"))
    writer = gguf.GGUFWriter(tmp_path / "b.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(SourceError, match=r"'llama\.attention\.head_count' is missing"):
        hf_config(open_gguf(tmp_path / "b.gguf"))


def test_token_ids_out_of_range(tmp_path: Path) -> None:
    def wrong(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list(TOKENS)
        writer.add_eos_token_id(len(TOKENS))

    with pytest.raises(SourceError, match=f"eos_token_id is {len(TOKENS)}, of {len(TOKENS)} tokens"):
        config_of(tmp_path, tokenizer=wrong)
