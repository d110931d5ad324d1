from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llm_inference.errors import SourceError
from llm_inference.model_spec.fields import JsonFields
from llm_inference.model_spec.rope import RopeSpec


def read(content: dict[str, Any]) -> RopeSpec:
    return RopeSpec.from_config(JsonFields(Path("config.json"), content))


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize(
    "content",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}},
    ],
)
def test_all_spellings_mean_the_same(content: dict[str, Any]) -> None:
    spec = read(content)
    assert (spec.theta, spec.rope_type, spec.factor, spec.original_max_position_embeddings) == (
        5e5,
        "llama3",
        8.0,
        8192,
    )
    assert spec.parameters == {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


def test_absent_and_default_scaling() -> None:
    assert read({}) == RopeSpec(10000.0)
    assert read({"rope_theta": 1e6, "rope_scaling": None}) == RopeSpec(1e6)
    assert read({"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}) == RopeSpec(1e5)
    assert read({"partial_rotary_factor": 0.5}).partial_rotary_factor == 0.5
    assert read({"rope_scaling": {"type": "su", "factor": 2}}).rope_type == "longrope"


@pytest.mark.parametrize(
    ("scaling", "declared", "expected"),
    [
        ({"type": "linear", "factor": 4.0}, 4096, 16384),
        ({"type": "dynamic", "factor": 2.0}, 4096, 8192),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 32768, 131072),
        ({"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}, 163840, 163840),
        ({"rope_type": "yarn", "factor": 4.0}, 1024, 4096),
        ({"rope_type": "llama3", **LLAMA3}, 131072, 131072),
    ],
)
def test_usable_context(scaling: dict[str, Any], declared: int, expected: int) -> None:
    assert read({"rope_scaling": scaling}).max_positions(declared) == expected


def test_wrong_types_name_the_nested_key() -> None:
    with pytest.raises(SourceError, match=r"'rope_scaling\.factor' must be a finite number, not 'big'"):
        read({"rope_scaling": {"type": "linear", "factor": "big"}})
