"""What a model directory says of its tokenizer besides the vocabulary: special tokens, flags, chat templates.

Reads tokenizer_config.json, special_tokens_map.json, added_tokens.json, chat_template.jinja, chat_template.json and
additional_chat_templates/*.jinja, with transformers' precedence. Knows nothing of vocabularies and rendering.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from llm_inference.errors import SourceError

#: The names under which a configuration (and a chat template) may speak of a special token.
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(slots=True)
class TokenizerFiles:
    """`named` and `extra`: special tokens. `declared`: id → token for tokens that the vocabulary may lack.

    `add_bos`, `add_eos`, `legacy`: the flags of tokenizer_config.json; None where it says nothing.
    `templates`: name → source; "default" is the one to use, "tool_use" the one to use with tools.
    """

    named: dict[str, tokenizers.AddedToken] = field(default_factory=dict)
    extra: list[tokenizers.AddedToken] = field(default_factory=list)
    declared: dict[int, tokenizers.AddedToken] = field(default_factory=dict)
    add_bos: bool | None = None
    add_eos: bool | None = None
    legacy: bool | None = None
    templates: dict[str, str] = field(default_factory=dict)


def read_files(directory: Path) -> TokenizerFiles:
    """Raises `SourceError` naming the file that is not what its name says. Absent files are no error."""
    files = TokenizerFiles()
    config = _read_json(directory / "tokenizer_config.json")
    for flag in ("add_bos", "add_eos"):
        value = config.get(f"{flag}_token")
        setattr(files, flag, value if isinstance(value, bool) else None)
    files.legacy = config["legacy"] if isinstance(config.get("legacy"), bool) else None
    said = dict(config)
    declared = config.get("added_tokens_decoder")
    if isinstance(declared, dict):
        for token_id, token in declared.items():
            added = _added_token(token, special=False)
            if added is not None and str(token_id).isdigit():
                files.declared[int(token_id)] = added
    else:
        # Only without that table do the two older files count.
        said.update(_read_json(directory / "special_tokens_map.json"))
        for text, token_id in _read_json(directory / "added_tokens.json").items():
            if isinstance(token_id, int):
                files.declared[token_id] = tokenizers.AddedToken(text, normalized=False, special=False)
    for name in NAMED_TOKENS:
        token = _added_token(said.get(name), special=True)
        if token is not None:
            files.named[name] = token
    extra = said.get("extra_special_tokens") or said.get("additional_special_tokens") or []
    for item in extra.values() if isinstance(extra, dict) else extra if isinstance(extra, list) else ():
        token = _added_token(item, special=True)
        if token is not None:
            files.extra.append(token)
    files.templates = _templates(directory, config)
    return files


def _templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Files of their own win over tokenizer_config.json, all of it."""
    found: dict[str, str] = {}
    path = directory / "chat_template.jinja"
    if path.is_file():
        found["default"] = read_text(path)
    else:
        found.update(_named_templates(_read_json(directory / "chat_template.json").get("chat_template")))
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = read_text(path)
    return found or _named_templates(config.get("chat_template"))


def _named_templates(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list):
        value = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
    if isinstance(value, dict):
        return {name: text for name, text in value.items() if isinstance(name, str) and isinstance(text, str)}
    return {}


def _added_token(value: Any, *, special: bool) -> tokenizers.AddedToken | None:
    """A token written as a string or as an object with `content` and matching flags."""
    if isinstance(value, str):
        return tokenizers.AddedToken(value, normalized=False, special=special) if value else None
    if not isinstance(value, dict) or not isinstance(value.get("content"), str) or not value["content"]:
        return None
    return tokenizers.AddedToken(
        value["content"],
        single_word=bool(value.get("single_word", False)),
        lstrip=bool(value.get("lstrip", False)),
        rstrip=bool(value.get("rstrip", False)),
        normalized=bool(value.get("normalized", False)),
        special=special or bool(value.get("special", False)),
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not valid JSON ({error}); fetch the file again") from error
    if not isinstance(value, dict):
        raise SourceError(f"{path}: a JSON object was expected, it holds a {type(value).__name__}")
    return value


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: not UTF-8 text ({error})") from error
