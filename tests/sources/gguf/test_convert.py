"""Whole conversions, compared with transformers: its models, and its own reading of GGUF."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from llm_inference.errors import SourceError
from llm_inference.model_spec import ModelSpec, read_generation_config
from llm_inference.sources.gguf import convert as module
from llm_inference.sources.gguf.convert import convert
from llm_inference.sources.verify import verify
from tests.sources.gguf.files import HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, TOKENS, llama_tensors, write_tiny_llama


@contextlib.contextmanager
def quiet() -> object:
    """transformers' own bars and warnings say nothing about us."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_converted_model_computes_what_the_original_does(tmp_path: Path, arch: str, tied: bool) -> None:
    name = {"llama": "Llama", "qwen2": "Qwen2"}[arch]
    config = getattr(transformers, f"{name}Config")(
        hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, vocab_size=len(TOKENS), tie_word_embeddings=tied, max_position_embeddings=128,
        rms_norm_eps=1e-5,
    )  # fmt: skip
    torch.manual_seed(0)
    original = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    weights = {key: value.numpy() for key, value in original.state_dict().items() if not (tied and "lm_head" in key)}
    path = write_tiny_llama(tmp_path / "m.gguf", arch=arch, tensors=weights)
    directory = tmp_path / "out"
    directory.mkdir()

    convert(path, directory, progress=False)

    verify(directory)
    with quiet():
        loaded = transformers.AutoModelForCausalLM.from_pretrained(directory).eval()
    assert type(loaded) is type(original)
    ids = torch.randint(0, len(TOKENS), (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, original(ids).logits)
    spec = ModelSpec.from_directory(directory)
    assert spec.num_parameters == sum(parameter.numel() for parameter in original.parameters())
    assert spec.qkv_bias == (arch == "qwen2")


def test_the_default_model_equals_transformers_own_reading(default_model_dir: Path, default_gguf: Path) -> None:
    with quiet():
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            default_gguf.parent, gguf_file=default_gguf.name, dtype=torch.float32
        )
    expected = {key: value for key, value in theirs.state_dict().items() if key != "lm_head.weight"}
    ours = load_file(str(default_model_dir / "model.safetensors"))
    assert ours.keys() == expected.keys()
    assert all(torch.equal(ours[key], value) for key, value in expected.items())
    config = transformers.AutoConfig.from_pretrained(default_model_dir)
    same = (
        "hidden_size num_hidden_layers num_key_value_heads rope_parameters head_dim max_position_embeddings vocab_size"
    )
    for key in (*same.split(), "tie_word_embeddings", "bos_token_id", "eos_token_id"):
        assert getattr(config, key) == getattr(theirs.config, key), key
    # Theirs is the stored float32 in double precision, ours the decimal that it stands for.
    assert np.float32(config.rms_norm_eps) == np.float32(theirs.config.rms_norm_eps)


def test_the_default_models_generation_config(default_model_dir: Path) -> None:
    assert read_generation_config(default_model_dir).eos_token_ids == (2,)


def test_a_split_and_sharded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = llama_tensors()
    write_tiny_llama(tmp_path / "m.gguf", tensors=weights, split_max_tensors=7)
    write = module.write_safetensors
    monkeypatch.setattr(module, "write_safetensors", lambda *a, **k: write(*a, **k, max_shard_bytes=60_000))
    directory = tmp_path / "out"
    directory.mkdir()
    convert(next(tmp_path.glob("m-00001-of-*.gguf")), directory, progress=False)
    verify(directory)
    with quiet():
        model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    assert all(torch.equal(model.state_dict()[key], torch.from_numpy(value)) for key, value in weights.items())


def test_half_precision_files_stay_half(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", quantization=gguf.GGMLQuantizationType.BF16)
    directory = tmp_path / "out"
    directory.mkdir()
    convert(path, directory, progress=False)
    assert json.loads((directory / "config.json").read_text())["dtype"] == "bfloat16"
    with quiet():
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    assert model.dtype == torch.bfloat16


def test_a_full_disk_is_noticed_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf")
    directory = tmp_path / "out"
    directory.mkdir()

    def full(_: Path, num_bytes: int, what: str) -> None:
        assert num_bytes == sum(value.nbytes for value in llama_tensors().values())
        raise SourceError(f"{what}: no room")

    monkeypatch.setattr(module, "require_free_space", full)
    with pytest.raises(SourceError, match=r"converting m\.gguf: no room"):
        convert(path, directory, progress=False)
    assert not list(directory.glob("*.safetensors"))


def test_progress_is_drawn_only_on_a_terminal(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf")
    for number, progress in enumerate((True, False)):
        directory = tmp_path / str(number)
        directory.mkdir()
        convert(path, directory, progress=progress)
    assert capfd.readouterr() == ("", "")
