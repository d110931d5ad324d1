from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_inference.config.schema import ModelConfig
from llm_inference.errors import ConfigError, InvalidRequestError, OutOfMemoryError
from llm_inference.native.budget import MemoryNeeds
from llm_inference.native.encoder_plan import require_memory
from llm_inference.native.plan import NativePlan, make_plan
from tests.native.tiny_encoders import MAX_TOKENS, add_files, save_tiny_encoder


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bert")
    save_tiny_encoder(path)
    add_files(path, max_tokens=20)
    return path


def plan_of(directory: Path, **options: Any) -> NativePlan:
    return make_plan(ModelConfig(name="tiny", model=str(directory), device="cpu", **options), progress=False)


def test_what_the_files_say(directory: Path) -> None:
    plan = plan_of(directory)
    setup = plan.setup
    assert (setup.kind, setup.max_model_len, setup.num_kv_blocks, setup.eos_token_ids) == ("encoder", 20, None, ())
    assert (plan.embedding.pooling, plan.embedding.normalize, plan.embedding.size) == ("mean", True, 32)
    assert plan.info.max_model_len == 20
    with pytest.raises(InvalidRequestError, match="'tiny' is an encoder"):
        plan.require_generation()


def test_the_configuration_may_go_beyond_the_advised_length_but_not_the_positions(directory: Path) -> None:
    assert plan_of(directory, max_model_len=MAX_TOKENS).setup.max_model_len == MAX_TOKENS
    with pytest.raises(ConfigError, match="at most 64 positions"):
        plan_of(directory, max_model_len=MAX_TOKENS + 1)


def test_a_step_holds_at_least_one_whole_input(directory: Path) -> None:
    assert plan_of(directory, max_num_batched_tokens=20).setup.max_num_batched_tokens == 20
    with pytest.raises(ConfigError, match="in one piece"):
        plan_of(directory, max_num_batched_tokens=19)


@pytest.mark.parametrize(
    "options",
    [
        {"kv_cache_memory": "1GiB"},
        {"block_size": 16},
        {"enable_prefix_caching": True},
        {"runner": "torch"},
        {"chat_template": "{{ x }}"},
        {"generation": {"temperature": 0.1}},
    ],
)
def test_options_without_effect_are_refused(directory: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))}: an encoder"):
        plan_of(directory, **options)


def test_memory_for_weights_and_a_step() -> None:
    needs = MemoryNeeds(weight_bytes=100 * 2**20, kv_bytes_per_token=1, workspace_bytes=20 * 2**20, alternatives={})
    require_memory(needs, 134 * 2**20, 0.9)
    with pytest.raises(OutOfMemoryError, match=r"needs 120\.0 MiB .* 119\.7 MiB can be used"):
        require_memory(needs, 133 * 2**20, 0.9)
