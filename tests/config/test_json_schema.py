from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llm_inference.config.json_schema import json_schema
from llm_inference.config.schema import ApiConfig, ModelConfig


def test_the_committed_schema_is_current(repository: Path) -> None:
    committed = json.loads((repository / "configs" / "schema.json").read_text())
    assert committed == json_schema(), "run `make schema`"


def test_it_knows_both_forms() -> None:
    schema = json_schema()
    sections = {"$schema", "api", "admission", "loading", "telemetry", "models"}
    assert set(schema["properties"]) == sections | set(ModelConfig.model_fields)
    assert set(schema["$defs"]["ApiConfig"]["properties"]) == set(ApiConfig.model_fields)
    assert schema["additionalProperties"] is False
    assert schema["then"]["properties"]["model"] is False


def test_every_reference_resolves_and_every_number_may_be_a_variable() -> None:
    schema = json_schema()

    def nodes(node: Any) -> Iterator[dict[str, Any]]:
        if isinstance(node, dict):
            yield node
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            yield from nodes(child)

    references = [node["$ref"] for node in nodes(schema) if "$ref" in node]
    assert references
    for reference in references:
        assert reference.removeprefix("#/$defs/") in schema["$defs"]
    port = schema["$defs"]["ApiConfig"]["properties"]["port"]
    assert [choice["type"] for choice in port["anyOf"]] == ["integer", "string"]
    assert port["default"] == 8000
