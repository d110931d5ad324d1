"""The small tokenizer that the engines without chat templates are tested with."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.config.schema import ModelConfig
from tests.adapters.generate_model import write_tokenizer


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tokenizer of single bytes and a chat template, and no weights."""
    return write_tokenizer(tmp_path_factory.mktemp("model") / "bytes")


@pytest.fixture(scope="session")
def prompts(tokenizer_dir: Path) -> PromptSide:
    return PromptSide.load(ModelConfig(name="m", model=str(tokenizer_dir)))
