"""Every weight exactly once, or an error that names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from llm_inference.errors import OutOfMemoryError, SourceError, UnsupportedModelError
from llm_inference.model_spec import ModelSpec
from llm_inference.native import loader
from llm_inference.native.loader import load_model, resolve_dtype
from tests.native.paging import random_tokens, torch_pager
from tests.native.tiny_models import CPU, TinyModel, reload, save_tiny

Tensors = dict[str, torch.Tensor]


def edit(directory: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def edit_config(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def assert_equals_reference(tiny: TinyModel) -> None:
    token_ids = random_tokens(15, seed=1)
    torch.testing.assert_close(torch_pager(tiny.load()).run(token_ids), tiny.logits(token_ids), atol=1e-4, rtol=1e-4)


def test_sharded(tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    tiny.reference.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_equals_reference(tiny)


def test_pickled(tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    assert_equals_reference(tiny)


def test_tied_without_a_head_tensor(tmp_path: Path) -> None:
    """Case O2."""
    tiny = save_tiny(tmp_path, tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    assert_equals_reference(tiny)


def test_tied_with_an_equal_head_tensor(tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path, tie_word_embeddings=True)
    edit(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert_equals_reference(tiny)


def test_tied_with_the_head_tensor_alone(tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path, tie_word_embeddings=True)
    edit(tmp_path, lambda t: t.update({"lm_head.weight": t.pop("model.embed_tokens.weight")}))
    assert_equals_reference(tiny)
    edit(tmp_path, lambda t: t.pop("lm_head.weight"))
    with pytest.raises(SourceError, match="lack both the embedding and the output head"):
        tiny.load()


def test_said_to_be_tied_but_the_head_differs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_tiny(tmp_path, tie_word_embeddings=True)
    edit(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].flip(0).clone()}))
    assert_equals_reference(TinyModel(tmp_path, reload(tmp_path)))
    assert "two different matrices" in caplog.text


def test_untied_without_a_head_is_an_error(tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path, tie_word_embeddings=True)
    edit_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(SourceError, match=r"lack lm_head\.weight"):
        tiny.load()


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path)
    edit(tmp_path, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(SourceError, match=r"lack model\.layers\.1\.mlp\.up_proj\.weight;"):
        tiny.load()
    edit_config(tmp_path, num_hidden_layers=3)
    with pytest.raises(SourceError, match=r"lack .* and \d more"):
        tiny.load()


def test_left_over_tensors_are_named_and_rotary_buffers_ignored(tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path)
    edit(tmp_path, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    assert_equals_reference(tiny)
    edit(tmp_path, lambda t: t.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(16)}))
    with pytest.raises(SourceError, match=r"hold model\.layers\.0\.self_attn\.q_norm\.weight \(model\.safetensors\)"):
        tiny.load()


def test_a_wrong_shape_names_tensor_file_and_both_shapes(tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path)
    edit(tmp_path, lambda t: t.update({"model.norm.weight": torch.ones(63)}))
    with pytest.raises(
        SourceError, match=r"model\.safetensors: the tensor 'model\.norm\.weight' has the shape \[63\].*asks for \[64\]"
    ):
        tiny.load()


def test_an_integer_tensor_is_no_weight(tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path)
    edit(tmp_path, lambda t: t.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}))
    with pytest.raises(SourceError, match=r"'model\.norm\.weight' is torch\.int8"):
        tiny.load()


def test_a_tensor_in_two_files_is_an_error(tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "one.safetensors")
    save_file({"model.norm.weight": torch.ones(64)}, tmp_path / "two.safetensors")
    with pytest.raises(SourceError, match=r"in one\.safetensors and again in two\.safetensors"):
        tiny.load()


def test_unknown_architecture_quantization_and_quantized_checkpoint(tmp_path: Path) -> None:
    tiny = save_tiny(tmp_path)
    spec = ModelSpec.from_directory(tmp_path)
    with pytest.raises(UnsupportedModelError, match="it can to int8, int4"):
        tiny.load(quantization="awq")
    with pytest.raises(UnsupportedModelError, match="'gpt9'; it knows llama"):
        load_model(tmp_path, replace(spec, model_type="gpt9"), dtype=torch.float32, device=CPU)
    quantized = replace(spec, quantization_config={"quant_method": "gptq"})
    with pytest.raises(UnsupportedModelError, match="quantized with gptq"):
        load_model(tmp_path, quantized, dtype=torch.float32, device=CPU)


def test_out_of_memory_says_what_would_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = save_tiny(tmp_path)

    def exhausted(*args: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

    monkeypatch.setattr(loader, "fill_slots", exhausted)
    with pytest.raises(OutOfMemoryError, match=r"do not fit into the memory of cpu; .* int4 \d"):
        tiny.load()


def test_progress_is_shown_only_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = save_tiny(tmp_path)
    capsys.readouterr()
    tiny.load()
    assert "loading weights" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("requested", "checkpoint", "expected"),
    [
        ("auto", "float32", torch.float32),
        ("auto", "float16", torch.float32),  # case O4
        ("bfloat16", "float32", torch.bfloat16),
        ("float16", "float32", torch.float16),
        ("float32", "bfloat16", torch.float32),
    ],
)
def test_dtype_on_a_cpu(requested: str, checkpoint: str, expected: torch.dtype, tmp_path: Path) -> None:
    save_tiny(tmp_path)
    spec = replace(ModelSpec.from_directory(tmp_path), dtype=checkpoint)
    dtype, reason = resolve_dtype(requested, spec, CPU)
    assert dtype == expected
    assert reason
    with pytest.raises(UnsupportedModelError, match="'int3'"):
        resolve_dtype("int3", spec, CPU)


@pytest.mark.parametrize(
    ("checkpoint", "has_bfloat16", "expected"),
    [
        ("bfloat16", True, torch.bfloat16),
        ("bfloat16", False, torch.float16),
        ("float16", True, torch.float16),
        ("float32", True, torch.bfloat16),
        ("float32", False, torch.float16),
    ],
)
def test_auto_dtype_on_a_gpu(
    checkpoint: str, has_bfloat16: bool, expected: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0) if has_bfloat16 else (7, 5))
    spec = replace(ModelSpec.from_directory(tmp_path), dtype=checkpoint)
    assert resolve_dtype("auto", spec, torch.device("cuda"))[0] == expected


def test_a_half_precision_checkpoint_in_float32_equals_transformers(tmp_path: Path) -> None:
    save_tiny(tmp_path, tie_word_embeddings=True)
    edit(tmp_path, lambda t: t.update({name: tensor.half() for name, tensor in t.items()}))
    assert_equals_reference(TinyModel(tmp_path, reload(tmp_path)))
