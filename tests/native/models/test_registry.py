"""Built-ins and plugins through one door."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from llm_inference.errors import UnsupportedModelError
from llm_inference.native.models import registry
from llm_inference.native.models.bert import BertEncoder
from llm_inference.native.models.llama import LlamaForCausalLM


def test_every_built_in_class_exists() -> None:
    for model_type in registry.BUILT_IN:
        assert registry.model_class(model_type) is LlamaForCausalLM
        assert registry.model_kind(model_type) == "decoder"
    for model_type in registry.BUILT_IN_ENCODERS:
        assert registry.encoder_class(model_type) is BertEncoder
        assert registry.model_kind(model_type) == "encoder"


def test_an_unknown_type_counts_as_a_decoder_and_is_refused_as_one() -> None:
    assert registry.model_kind("mamba") == "decoder"
    with pytest.raises(UnsupportedModelError, match="of encoders, bert, distilbert, roberta, xlm-roberta"):
        registry.model_class("mamba")
    with pytest.raises(UnsupportedModelError, match=r"'llm_inference\.encoders'"):
        registry.encoder_class("mamba")


def test_unknown_architecture_lists_the_known() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'mamba'; it knows llama, mistral, qwen2"):
        registry.model_class("mamba")


def test_entry_points_add_but_never_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = EntryPoints(
        [
            EntryPoint("mine", "llm_inference.native.models.llama:LlamaForCausalLM", registry.GROUP),
            EntryPoint("llama", "evil:Model", registry.GROUP),
            EntryPoint("broken", "no_such_package.model:Model", registry.GROUP),
            EntryPoint("my_encoder", "llm_inference.native.models.bert:BertEncoder", registry.ENCODER_GROUP),
            EntryPoint("qwen2", "evil:Encoder", registry.ENCODER_GROUP),
        ]
    )
    monkeypatch.setattr(registry, "entry_points", lambda group: entries.select(group=group))
    assert registry.model_class("mine") is LlamaForCausalLM
    assert registry.model_class("llama") is LlamaForCausalLM
    assert registry.encoder_class("my_encoder") is BertEncoder
    assert registry.model_kind("my_encoder") == "encoder"
    assert registry.model_kind("qwen2") == "decoder"
    with pytest.raises(UnsupportedModelError, match=r"'no_such_package.model:Model' .* cannot be imported"):
        registry.model_class("broken")
