"""Rendered files are those in `golden/`; `python -m tests.deploy.golden` writes them anew."""

from __future__ import annotations

import pytest

from llm_inference.deploy.render import TARGETS, render
from tests.deploy.cases import CASES, GOLDEN, SPECIAL
from tests.deploy.golden import FOLDER, rendered


@pytest.mark.parametrize(("case", "target"), GOLDEN)
def test_as_before(case: str, target: str) -> None:
    folder = FOLDER / case / target
    kept = {
        path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*") if path.is_file()
    }
    assert rendered(case, target) == kept, "if this is meant: python -m tests.deploy.golden"


def test_nothing_else_lies_there() -> None:
    folders = {(path.parent.name, path.name) for path in FOLDER.glob("*/*")}
    assert folders == set(GOLDEN)


@pytest.mark.parametrize("case", CASES | SPECIAL)
@pytest.mark.parametrize("target", TARGETS)
def test_no_secret_lands_in_a_file(case: str, target: str) -> None:
    from llm_inference.errors import ConfigError

    try:
        files = render(target, (CASES | SPECIAL)[case]())
    except ConfigError:
        return
    assert [name for name, text in files.items() if "not-in-any-file" in text] == []
    assert all(text.endswith("\n") and not text.endswith("\n\n") for text in files.values())
    lines = ((name, line) for name, text in files.items() for line in text.splitlines() if "expr" not in line)
    long = [f"{name}: {line}" for name, line in lines if len(line) > 160]
    assert long == []


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_facts_give_the_same_files(target: str) -> None:
    case = SPECIAL["ray"] if target == "ray" else CASES["cpu"]
    assert render(target, case()) == render(target, case())
