from __future__ import annotations

from pathlib import Path

import pytest

from llm_inference.errors import ConfigError
from llm_inference.tools.bench.dataset import DatasetRow, read_dataset
from llm_inference.tools.bench.settings import Endpoint

MESSAGES = [{"role": "user", "content": "hi"}]


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    return file


def test_rows_in_the_files_order(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        '{"prompt": "a", "max_tokens": 5}\n\n{"messages": [{"role": "user", "content": "hi"}]}\n{"prompt": "b"}',
    )
    rows = read_dataset(file, "chat")
    assert rows == [DatasetRow("a", None, 5), DatasetRow(None, MESSAGES), DatasetRow("b")]
    assert [row.content for row in rows] == ["a", MESSAGES, "b"]


def test_token_ids_are_for_completions(tmp_path: Path) -> None:
    assert read_dataset(write(tmp_path, '{"prompt": [1, 2]}'), "completions")[0].content == [1, 2]


@pytest.mark.parametrize(
    ("line", "endpoint", "words"),
    [
        ("{", "chat", "malformed|truncated"),
        ('{"prompt": 5}', "chat", "prompt"),
        ('{"text": "a"}', "chat", "text"),
        ("{}", "chat", "exactly one"),
        ('{"prompt": "a", "messages": []}', "chat", "exactly one"),
        ('{"prompt": ""}', "chat", "empty"),
        ('{"prompt": "a", "max_tokens": 0}', "chat", "at least 1"),
        ('{"messages": [{"role": "user"}]}', "completions", "--endpoint chat"),
        ('{"prompt": [1]}', "chat", "--endpoint completions"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, endpoint: Endpoint, words: str) -> None:
    file = write(tmp_path, '{"prompt": "fine"}\n' + line)
    with pytest.raises(ConfigError, match=words) as caught:
        read_dataset(file, endpoint)
    assert f"{file}:2: " in caught.value.message


def test_no_file_and_no_prompts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_dataset(tmp_path / "absent", "chat")
    with pytest.raises(ConfigError, match="has no prompts"):
        read_dataset(write(tmp_path, "\n\n"), "chat")
