"""The environment of the templates: everything is quoted, nothing is forgotten."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from llm_inference.deploy import templating
from llm_inference.deploy.quoting import yaml_scalar


def test_a_name_that_is_not_given_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="'name' is undefined"):
        templating.render("kubernetes/pdb.yaml.j2", yaml_scalar)


def test_every_value_is_quoted() -> None:
    text = templating.render("kubernetes/namespace.yaml.j2", yaml_scalar, namespace="a: b\nkind: Role")
    assert '  name: "a: b\\x0akind: Role"\n' in text


def test_indented() -> None:
    assert templating.indented("a\n\n b\n", 2) == "  a\n\n   b"


def test_only_blocks_of_our_own_are_raw() -> None:
    """`raw` leaves quoting out, so each use is looked at: this is the list."""
    folder = Path(templating.__file__).parent / "templates"
    found = [
        (path.name, expression)
        for path in sorted(folder.rglob("*.j2"))
        for expression in re.findall(r"\[\[-? (.*?) -?\]\]", path.read_text())
        if re.search(r"\| *raw", expression)
    ]
    assert found == [
        ("Dockerfile.j2", "json(cache_path) | raw"),
        ("Dockerfile.j2", "json(config_path) | raw"),
        ("values.yaml.j2", "config | raw"),
        ("deployment.yaml.j2", "pod | indented(6) | trim | raw"),
        ("leaderworkerset.yaml.j2", "pod | indented(8) | trim | raw"),
        ("leaderworkerset.yaml.j2", "worker | indented(8) | trim | raw"),
        ("monitoring.yaml.j2", "rules | indented(2) | trim | raw"),
        ("rayservice.yaml.j2", "applications | indented(4) | trim | raw"),
        ("rayservice.yaml.j2", 'pod("head", {"cpus": 2, "memory": head_memory, "gpus": 0}) | indented(6) | trim | raw'),
        (
            "rayservice.yaml.j2",
            'pod("gateway", {"cpus": gateway_cpus, "memory": gateway_memory, "gpus": 0}) | indented(8) | trim | raw',
        ),
        ("rayservice.yaml.j2", 'pod("engine", group) | indented(8) | trim | raw'),
        ("systemd.service.j2", "description | raw"),
    ]
