from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_inference.errors import SourceError
from llm_inference.text.tokenizer_files import read_files
from tests.text.conftest import write_model


def test_empty_directory_says_nothing(tmp_path: Path) -> None:
    files = read_files(tmp_path)
    assert (files.named, files.extra, files.declared, files.templates) == ({}, [], {}, {})
    assert (files.add_bos, files.add_eos, files.legacy) == (None, None, None)


def test_tokens_as_strings_and_objects(tmp_path: Path) -> None:
    config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "lstrip": True, "rstrip": False, "normalized": True},
        "pad_token": None,
        "unk_token": "",
        "additional_special_tokens": ["<a>", {"content": "<b>"}, 7],
        "add_bos_token": True,
        "add_eos_token": "yes",
        "legacy": False,
    }
    files = read_files(write_model(tmp_path, config=config))
    assert {name: token.content for name, token in files.named.items()} == {"bos_token": "<s>", "eos_token": "</s>"}
    assert (files.named["eos_token"].lstrip, files.named["eos_token"].normalized) == (True, True)
    assert [token.content for token in files.extra] == ["<a>", "<b>"]
    assert all(token.special for token in (*files.named.values(), *files.extra))
    assert (files.add_bos, files.add_eos, files.legacy) == (True, None, False)


def test_older_files_count_only_without_the_table(tmp_path: Path) -> None:
    old = {
        "special_tokens_map__json": json.dumps({"eos_token": {"content": "<end>"}}),
        "added_tokens__json": json.dumps({"<new>": 7}),
    }
    files = read_files(write_model(tmp_path, config={"eos_token": "</s>"}, **old))
    assert files.named["eos_token"].content == "<end>"
    assert {i: t.content for i, t in files.declared.items()} == {7: "<new>"}
    table = {"3": {"content": "<x>", "special": True}, "4": {"content": "<y>", "special": False}}
    files = read_files(write_model(tmp_path, config={"eos_token": "</s>", "added_tokens_decoder": table}))
    assert files.named["eos_token"].content == "</s>"
    assert {i: (t.content, t.special) for i, t in files.declared.items()} == {3: ("<x>", True), 4: ("<y>", False)}


NAMED = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]


@pytest.mark.parametrize(
    ("config", "texts", "expected"),
    [
        ("one", {}, {"default": "one"}),
        (NAMED, {}, {"default": "D", "tool_use": "T"}),
        ("one", {"chat_template__jinja": "two"}, {"default": "two"}),
        (NAMED, {"chat_template__jinja": "two"}, {"default": "two"}),
        ("one", {"chat_template__json": '{"chat_template": "three"}'}, {"default": "three"}),
        (
            None,
            {"chat_template__json": '{"chat_template": "three"}', "chat_template__jinja": "two"},
            {"default": "two"},
        ),
        ([{"name": "x"}, 3], {}, {}),
        (7, {}, {}),
    ],
)
def test_where_a_template_comes_from(
    tmp_path: Path, config: Any, texts: dict[str, str], expected: dict[str, str]
) -> None:
    assert read_files(write_model(tmp_path, config={"chat_template": config}, **texts)).templates == expected


def test_additional_templates(tmp_path: Path) -> None:
    write_model(tmp_path, config={"chat_template": "old"}, chat_template__jinja="new")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("T")
    assert read_files(tmp_path).templates == {"default": "new", "tool_use": "T"}


@pytest.mark.parametrize(
    "name", ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.json"]
)
@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_broken_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=name.replace(".", r"\.")):
        read_files(tmp_path)
