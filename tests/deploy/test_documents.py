"""docs/deploy/: what it shows of rendered files stands there, and what it lists is all there is."""

from __future__ import annotations

import re

import pytest

from llm_inference.deploy.render import TARGETS
from tests.deploy.golden import FOLDER
from tests.deploy.test_helm import CHANGES
from tests.docs.blocks import REPOSITORY, Block, all_blocks, coded, table

DOCS = REPOSITORY / "docs"
SHOWN = [block for block in all_blocks() if "from" in block.marks]


@pytest.mark.parametrize("block", SHOWN, ids=str)
def test_what_is_shown_is_rendered(block: Block) -> None:
    assert block.text in (FOLDER / block.marks["from"]).read_text("utf-8")


def test_three_services_are_shown() -> None:
    shown = {block.marks["from"].split("/")[0] for block in SHOWN if block.file == "docs/deploy/rendered.md"}
    assert shown == {"cpu", "vllm", "tiers"}


def test_every_target_is_in_the_table() -> None:
    rows = table((DOCS / "deployment.md").read_text())
    assert {coded(row[0])[0] for row in rows} == set(TARGETS)


def test_every_page_says_what_was_run() -> None:
    pages = {path.stem for path in (DOCS / "deploy").glob("*.md")}
    assert set(TARGETS) - {"monitoring"} <= pages
    for page in pages - {"rendered", "isolation"}:
        assert "## What was run" in (DOCS / "deploy" / f"{page}.md").read_text(), page
        assert f"deploy/{page}.md" in (DOCS / "deployment.md").read_text(), page


def test_every_helm_value_is_documented() -> None:
    rows = table((DOCS / "deploy" / "helm.md").read_text())
    documented = {name for row in rows for name in coded(row[0])}
    changed = {re.sub(r"\[.*", "", change) for change in CHANGES if not change.startswith("config.")} | {"replicas"}
    assert documented == {"nodeSelector" if name == "nodeSelector.disk" else name for name in changed}
