"""Validation against OpenAI's own public document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema


class PublicSchemas:
    def __init__(self, shared_dir: Path) -> None:
        self._document = json.loads((shared_dir / "fixtures" / "openai-openapi" / "openapi.json").read_text())

    def check(self, value: Any, name: str) -> None:
        """Raises unless `value` is a `name` of that document."""
        schema = {"$ref": f"#/components/schemas/{name}", "components": _nullable(self._document["components"])}
        jsonschema.Draft202012Validator(schema).validate(value)


def _nullable(node: Any) -> Any:
    """OpenAPI 3.0's `nullable: true`, which the document still has in places, as JSON Schema says it."""
    if isinstance(node, list):
        return [_nullable(item) for item in node]
    if not isinstance(node, dict):
        return node
    changed = {key: _nullable(item) for key, item in node.items()}
    if changed.get("nullable") is True:
        return {"anyOf": [{key: item for key, item in changed.items() if key != "nullable"}, {"type": "null"}]}
    return changed
