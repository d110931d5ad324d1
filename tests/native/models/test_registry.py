"""Built-ins and plugins through one door."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from llm_inference.errors import UnsupportedModelError
from llm_inference.native.models import registry
from llm_inference.native.models.llama import LlamaForCausalLM


def test_every_built_in_class_exists() -> None:
    for model_type in registry.BUILT_IN:
        assert registry.model_class(model_type) is LlamaForCausalLM


def test_unknown_architecture_lists_the_known() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'mamba'; it knows llama, mistral, qwen2"):
        registry.model_class("mamba")


def test_entry_points_add_but_never_replace(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = EntryPoints(
        [
            EntryPoint("mine", "llm_inference.native.models.llama:LlamaForCausalLM", registry.GROUP),
            EntryPoint("llama", "evil:Model", registry.GROUP),
            EntryPoint("broken", "no_such_package.model:Model", registry.GROUP),
        ]
    )
    monkeypatch.setattr(registry, "entry_points", lambda group: entries.select(group=group))
    assert registry.model_class("mine") is LlamaForCausalLM
    assert registry.model_class("llama") is LlamaForCausalLM
    with pytest.raises(UnsupportedModelError, match=r"'no_such_package.model:Model' .* cannot be imported"):
        registry.model_class("broken")
