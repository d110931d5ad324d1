"""Tables of claims and the tests that prove them: each test that they name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import REPOSITORY, section, table

DOCUMENTS = sorted(path for path in (REPOSITORY / "docs").glob("*.md") if "\n| Claim | Test |\n" in path.read_text())


def test_the_documents_that_promise_most_have_one() -> None:
    assert {"admission.md", "loading.md", "routing.md", "tenants.md"} <= {path.name for path in DOCUMENTS}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_that_is_named_exists(document: Path) -> None:
    for _, proof in table(section(document, "Proof")):
        for part in proof.split(";"):
            files = re.findall(r"`(tests/[\w/]+\.py)`", part)
            names = re.findall(r"`(test_\w+)`", part)
            assert len(files) <= 1
            assert bool(files) == bool(names), part
            for name in names:
                assert f"def {name}(" in (REPOSITORY / files[0]).read_text(), f"{files[0]} has no {name}"
