"""Prompts from a JSONL file: an object a line, `{"prompt": …}` or `{"messages": […]}`, perhaps with `max_tokens`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from llm_inference.errors import ConfigError
from llm_inference.tools.bench.settings import Endpoint


class DatasetRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`prompt` is text, or token ids for completions; exactly one of `prompt` and `messages` is there."""

    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    max_tokens: int | None = None

    @property
    def content(self) -> Any:
        return self.prompt if self.messages is None else self.messages


def read_dataset(path: Path, endpoint: Endpoint) -> list[DatasetRow]:
    """All rows, in the file's order; empty lines are skipped. Raises `ConfigError` that names the line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"--dataset: {path} cannot be read: {error.strerror}") from error
    rows: list[DatasetRow] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line, type=DatasetRow)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"--dataset: {path}:{number}: {error}") from error
        problem = _problem(row, endpoint)
        if problem:
            raise ConfigError(f"--dataset: {path}:{number}: {problem}")
        rows.append(row)
    if not rows:
        raise ConfigError(f"--dataset: {path} has no prompts")
    return rows


def _problem(row: DatasetRow, endpoint: Endpoint) -> str | None:
    if (row.prompt is None) == (row.messages is None):
        return 'needs exactly one of "prompt" and "messages"'
    if endpoint == "completions" and row.messages is not None:
        return "has messages, which need --endpoint chat"
    if endpoint == "chat" and isinstance(row.prompt, list):
        return "has token ids, which need --endpoint completions"
    if not row.content:
        return "has an empty prompt"
    if row.max_tokens is not None and row.max_tokens < 1:
        return f"max_tokens is {row.max_tokens}, must be at least 1"
    return None
