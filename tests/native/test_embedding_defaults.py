from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_inference.errors import SourceError, UnsupportedModelError
from llm_inference.native.embedding_defaults import EmbeddingDefaults, read_embedding_defaults


def write(directory: Path, modules: Any, pooling: Any = None) -> Path:
    (directory / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (directory / "1_Pooling").mkdir()
        (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return directory


def module(name: str, path: str = "") -> dict[str, str]:
    return {"path": path, "type": f"sentence_transformers.models.{name}"}


LAYOUT = [module("Transformer"), module("Pooling", "1_Pooling")]


def test_without_a_layout(tmp_path: Path) -> None:
    assert read_embedding_defaults(tmp_path, "decoder", 8) == EmbeddingDefaults(pooling="last", normalize=True, size=8)
    assert read_embedding_defaults(tmp_path, "encoder", 8) == EmbeddingDefaults(pooling="mean", normalize=True, size=8)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": False, "word_embedding_dimension": 3}, "cls"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
)
def test_pooling_is_what_the_file_says(tmp_path: Path, pooling: dict[str, Any], expected: str) -> None:
    defaults = read_embedding_defaults(write(tmp_path, LAYOUT, pooling), "encoder", 8)
    assert (defaults.pooling, defaults.normalize) == (expected, False)


def test_normalize_and_longest_input(tmp_path: Path) -> None:
    write(tmp_path, [*LAYOUT, module("Normalize", "2_Normalize")], {"pooling_mode_mean_tokens": True})
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 256}')
    defaults = read_embedding_defaults(tmp_path, "encoder", 8)
    assert defaults == EmbeddingDefaults(pooling="mean", normalize=True, size=8, max_tokens=256)


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        ([*LAYOUT, module("Dense", "2_Dense")], {"pooling_mode": "mean"}, "module 'Dense'"),
        (LAYOUT, {"pooling_mode_max_tokens": True}, "pooling by pooling_mode_max_tokens"),
        (LAYOUT, {"pooling_mode": "weightedmean"}, "pooling by weightedmean"),
        (LAYOUT, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "_tokens and pooling_mode_cls"),
        (LAYOUT, {"word_embedding_dimension": 3}, "pooling by nothing"),
    ],
)
def test_what_would_make_other_vectors_is_refused(tmp_path: Path, modules: Any, pooling: Any, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read_embedding_defaults(write(tmp_path, modules, pooling), "encoder", 8)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({"a": 1}, "must hold a list"),
        ([1], "must hold a list"),
        ([module("Pooling", "../elsewhere")], "no folder beside it"),
        ([module("Pooling")], "no folder beside it"),
        (LAYOUT, r"1_Pooling/config\.json is missing"),
    ],
)
def test_files_that_are_not_what_they_seem(tmp_path: Path, modules: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        read_embedding_defaults(write(tmp_path, modules), "encoder", 8)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[")
    with pytest.raises(SourceError, match=r"modules\.json: cannot be read as JSON"):
        read_embedding_defaults(tmp_path, "encoder", 8)
