"""The tables of fields are those of the operators, where their definitions are at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.deploy.crds import FIELDS, check, definition, strict, unknown_to


@pytest.mark.parametrize("kind", FIELDS)
def test_the_operator_knows_every_name(kind: str) -> None:
    _, name, fields = FIELDS[kind]
    schema = definition(name)
    if schema is None:
        pytest.skip(f"the definition of {name} is in no package registry; put it into the tools' crds/ by hand")
    assert unknown_to(schema["properties"]["spec"], fields) == []


@pytest.mark.parametrize("kind", FIELDS)
def test_the_tables_are_really_asked(kind: str, tmp_path: Path) -> None:
    thing = {"apiVersion": FIELDS[kind][0], "kind": kind, "spec": {"nonsense": 1}}
    with pytest.raises(AssertionError, match=r"spec\.nonsense: the operator knows no such field"):
        check(thing, tmp_path)


def test_a_strict_schema_takes_no_unknown_field() -> None:
    inner: dict[str, Any] = {"type": "object", "properties": {"a": {"x-kubernetes-int-or-string": True}}}
    labels = {"type": "object", "additionalProperties": {"type": "string"}}
    made = strict({"type": "object", "properties": {"spec": inner, "labels": labels, "metadata": {"type": "object"}}})
    assert made["additionalProperties"] is False
    assert made["properties"]["spec"]["additionalProperties"] is False
    assert made["properties"]["spec"]["properties"]["a"] == {"type": ["integer", "string"]}
    assert made["properties"]["labels"] == labels
    assert made["properties"]["metadata"] == {"type": "object"}
