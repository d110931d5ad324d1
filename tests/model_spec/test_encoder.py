from __future__ import annotations

from pathlib import Path

import pytest
from transformers import PreTrainedModel

from llm_inference.errors import SourceError
from llm_inference.model_spec import ModelSpec
from tests.model_spec.files import write_config, write_tokenizer
from tests.native.tiny_encoders import FAMILIES, MAX_TOKENS, VOCAB, save_tiny_encoder


def num_parameters(model: PreTrainedModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_read_in_the_words_of_decoders(tmp_path: Path, family: str) -> None:
    model = save_tiny_encoder(tmp_path, family).reference
    spec = ModelSpec.from_directory(tmp_path)
    assert (spec.model_type, spec.vocab_size, spec.max_position_embeddings) == (family, len(VOCAB), MAX_TOKENS)
    assert (spec.hidden_size, spec.intermediate_size, spec.num_layers, spec.num_heads) == (32, 48, 2, 4)
    assert (spec.hidden_act, spec.dtype) == ("gelu", "float32")
    assert spec.num_parameters == num_parameters(model)
    (tmp_path / "model.safetensors").unlink()  # by the shapes alone: all but types and heads
    assert ModelSpec.from_directory(tmp_path).num_parameters == pytest.approx(num_parameters(model), rel=0.1)


def test_a_wrong_key_is_named(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    write_config(tmp_path, model_type="roberta", max_position_embeddings="many")
    with pytest.raises(SourceError, match="'max_position_embeddings' must be a whole number"):
        ModelSpec.from_directory(tmp_path)
