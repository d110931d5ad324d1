"""docs/structure.md against the tree: every module, every function that it names, every layer."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import msgspec
import pytest

from llm_inference.engine.types import GenerateRequest, SamplingParams
from tests.docs.blocks import REPOSITORY, coded, prose, section, table

DOCUMENT = REPOSITORY / "docs" / "structure.md"
PACKAGE = REPOSITORY / "src" / "llm_inference"
HEADING = "Where is a sampling parameter enforced?"


def modules() -> dict[str, Path]:
    """Every module that is not empty, by its path below the package."""
    files = (path for path in PACKAGE.rglob("*.py") if path.read_text().strip())
    return {path.relative_to(PACKAGE).as_posix(): path for path in files}


def listed() -> list[str]:
    """The first column of all tables under "Files"."""
    rows = re.findall(r"^\| `([\w/.]+\.py)` \|", section(DOCUMENT, "Files"), flags=re.MULTILINE)
    return [str(row) for row in rows]


def test_every_module_has_a_line() -> None:
    missing = [name for name in modules() if name not in listed()]
    lines = [f"| `{name}` | {first_sentence(modules()[name])} |" for name in sorted(missing)]
    assert not lines, "add to docs/structure.md:\n" + "\n".join(lines)


def test_no_line_is_of_a_module_that_is_gone() -> None:
    assert sorted(set(listed()) - set(modules())) == []
    assert len(listed()) == len(set(listed()))


def test_every_module_says_what_it_is_for() -> None:
    assert [name for name, path in modules().items() if not first_sentence(path)] == []


def test_every_path_in_the_text_exists() -> None:
    named = set(re.findall(r"`([\w/]+(?:\.py|/))(?::[\w.]+)?`", prose(DOCUMENT)))
    assert len(named) > 100
    absent = [name for name in named if not ((PACKAGE / name).exists() or (REPOSITORY / name).exists())]
    assert [name for name in absent if name not in ("utils/", "common/")] == []


def test_every_function_in_the_text_exists() -> None:
    references = re.findall(r"`([\w/]+\.py):([\w.]+)`", prose(DOCUMENT))
    assert references
    assert [f"{file}:{name}" for file, name in references if name not in functions(PACKAGE / file)] == []


def test_every_sampling_parameter_is_found() -> None:
    names = [name for row in table(section(DOCUMENT, HEADING)) for name in coded(row[0])]
    assert len(names) == len(set(names))
    fields = {field.name for field in msgspec.structs.fields(SamplingParams)}
    assert fields <= set(names)
    assert set(names) - fields <= {field.name for field in msgspec.structs.fields(GenerateRequest)}


@pytest.mark.parametrize(
    "parameter", ["temperature", "top_p", "seed", "stop", "max_tokens", "logit_bias", "ignore_eos"]
)
def test_the_named_file_speaks_of_the_parameter(parameter: str) -> None:
    [row] = [row for row in table(section(DOCUMENT, HEADING)) if parameter in coded(row[0])]
    file = coded(row[1])[0].split(":")[0]
    assert re.search(rf"\b{parameter}\b", (PACKAGE / file).read_text())


def test_the_layers_are_those_that_the_linter_proves() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()
    contract = text.split('name = "Rooms import only rooms below them"', 1)[1].split("]", 2)[1]
    proven = [set(line.split(" | ")) for line in re.findall(r'^  "([^"]+)",$', contract, flags=re.MULTILINE)]
    rows = table(section(DOCUMENT, "Layers"))
    documented = [{name.strip("/").removesuffix(".py") for name in coded(row[1])} for row in rows]
    assert documented == proven[::-1]
    assert [row[0] for row in rows] == [str(number) for number in range(len(rows))]


def first_sentence(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return re.split(r"(?<=\.)\s", docstring.split("\n\n")[0].replace("\n", " "))[0].rstrip(".:")


def functions(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            members = [member for member in node.body if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef))]
            found.update({node.name}, (f"{node.name}.{member.name}" for member in members))
    return found
