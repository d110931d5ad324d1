from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_inference.errors import SourceError
from llm_inference.model_spec import GenerationConfig, read_generation_config
from tests.model_spec.files import write_config


def write(directory: Path, content: dict[str, Any] | None, **config: Any) -> Path:
    write_config(directory, **config)
    if content is not None:
        (directory / "generation_config.json").write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [7, 8]}, {"eos_token_id": 9}, (7, 8, 9)),
        ({"eos_token_id": 7}, {"eos_token_id": [7, 9]}, (7, 9)),
        ({}, {"eos_token_id": 9}, (9,)),
        (None, {"eos_token_id": [3, 4]}, (3, 4)),
        (None, {}, ()),
    ],
)
def test_eos_ids_of_both_files_are_united(
    tmp_path: Path, generation: dict[str, Any] | None, config: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert read_generation_config(write(tmp_path, generation, **config)).eos_token_ids == expected


SAMPLING = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.05}


def test_sampling_values_are_defaults_when_the_file_samples(tmp_path: Path) -> None:
    read = read_generation_config(write(tmp_path, {"do_sample": True, "max_new_tokens": 256, **SAMPLING}))
    assert read == GenerationConfig(do_sample=True, max_new_tokens=256, **SAMPLING)


@pytest.mark.parametrize("do_sample", [{"do_sample": False}, {"do_sample": None}, {}])
def test_without_do_sample_only_the_penalty_counts(tmp_path: Path, do_sample: dict[str, Any]) -> None:
    read = read_generation_config(write(tmp_path, do_sample | SAMPLING))
    assert read == GenerationConfig(repetition_penalty=1.05)


def test_special_ids_prefer_the_generation_config(tmp_path: Path) -> None:
    read = read_generation_config(write(tmp_path, {"bos_token_id": 1}, bos_token_id=5, pad_token_id=6))
    assert (read.bos_token_id, read.pad_token_id) == (1, 6)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", "hot"),
        ("temperature", -1),
        ("top_p", 1.5),
        ("top_k", 2.5),
        ("do_sample", 1),
        ("eos_token_id", "2"),
    ],
)
def test_wrong_values_name_file_and_key(tmp_path: Path, key: str, value: object) -> None:
    write(tmp_path, {"do_sample": True, key: value})
    with pytest.raises(SourceError, match=f"generation_config.json: '{key}'"):
        read_generation_config(tmp_path)
