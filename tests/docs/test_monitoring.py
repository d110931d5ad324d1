"""The recipes of docs/monitoring.md that no test can run: they name what our log lines have."""

from __future__ import annotations

import io
import json
import logging
import re
from datetime import datetime

import yaml

from llm_inference.telemetry.logging import configure_logging
from tests.docs.blocks import REPOSITORY, read_blocks

RECIPES = [block for block in read_blocks(REPOSITORY / "docs" / "monitoring.md") if block.language == "text"]


def a_line() -> dict[str, object]:
    stream = io.StringIO()
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        configure_logging("info", "json", stream)
        logging.getLogger("llm_inference.gateway").info("a message")
        [line] = stream.getvalue().splitlines()
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    found: dict[str, object] = json.loads(line)
    return found


def test_the_collector_reads_our_lines() -> None:
    [block] = [block for block in RECIPES if block.text.startswith("receivers:")]
    recipe = yaml.safe_load(block.text)
    assert recipe.keys() == {"receivers", "exporters", "service"}
    operators = recipe["receivers"]["filelog"]["operators"]
    assert [one["type"] for one in operators] == ["json_parser", "move"]
    line = a_line()
    taken = [operators[0]["timestamp"]["parse_from"], operators[0]["severity"]["parse_from"], operators[1]["from"]]
    for place in taken:
        assert place.removeprefix("attributes.") in line, place
    # Go's reference time, as Python writes it.
    layout = operators[0]["timestamp"]["layout"]
    for go, ours in (("2006-01-02T15:04:05", "%Y-%m-%dT%H:%M:%S"), (".000", ".%f")):
        assert go in layout
        layout = layout.replace(go, ours)
    assert datetime.strptime(str(line["time"]), layout)


def test_loki_is_told_fields_that_exist() -> None:
    [block] = [block for block in RECIPES if "loki.source.file" in block.text]
    [named] = re.findall(r"stage\.json \{ expressions = \{(.*?)\} \}", block.text)
    line = a_line()
    for name, field in re.findall(r'(\w+) = "(\w+)"', named):
        assert field in line, name
