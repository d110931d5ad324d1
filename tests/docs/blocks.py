"""Reads the documents: fenced blocks with the marks above them, tables, links. Runs nothing.

Marks are HTML comments on the lines right above a block, so that nobody sees them who only reads:

    (none)                   bash and python are run, yaml is loaded as a config, json is parsed
    <!-- expect: TEXT -->    run, and TEXT is in the output
    <!-- stdin: TEXT -->     run with TEXT as its input
    <!-- exit: N -->         run, and it ends with N instead of 0
    <!-- serve -->           a server: started for real on a free port, asked for its models, stopped
    <!-- dry run -->         checked without being run: `make -n`, or flags parsed and the config loaded
    <!-- continues -->       one program with the block of the same language before it in this file
    <!-- file: NAME -->      written to NAME in the folder where the blocks run
    <!-- from: FILE -->      lines of a golden file of a deployment, compared in tests/deploy/test_documents.py
    <!-- not run: REASON --> neither; the test counts these

Blocks of `text` are not for running.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTS = (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md")))
#: Documents whose blocks another test runs.
TESTED_ELSEWHERE = {"docs/benchmarking.md": "tests/tools/bench/test_docs.py"}
MARKS = ("expect", "stdin", "exit", "serve", "dry run", "continues", "file", "from", "not run")
LANGUAGES = ("bash", "python", "yaml", "json", "text")

_MARK = re.compile(r"<!-- (?P<name>[a-z ]+?)(?:: (?P<value>.*?))? -->")
_FENCE = re.compile(r"^(?P<ticks>```+)(?P<language>[a-z]*)$")


@dataclass(slots=True)
class Block:
    file: str
    line: int
    language: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def read_blocks(path: Path) -> list[Block]:
    """Every fenced block of a document, in order."""
    blocks: list[Block] = []
    marks: dict[str, str] = {}
    lines = path.read_text().splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if match := _MARK.fullmatch(line.strip()):
            assert match["name"] in MARKS, f"{path.name}:{number}: the mark {match['name']!r} is unknown"
            marks[match["name"]] = match["value"] or ""
        elif match := _FENCE.match(line):
            first = number
            while lines[number] != match["ticks"]:
                number += 1
            text = "\n".join(lines[first:number]) + "\n"
            blocks.append(Block(path.relative_to(REPOSITORY).as_posix(), first, match["language"], text, marks))
            marks = {}
            number += 1
        else:
            assert not marks, f"{path.name}:{number}: a mark without a block below it"
    return blocks


def all_blocks() -> list[Block]:
    names = {path.relative_to(REPOSITORY).as_posix(): path for path in DOCUMENTS}
    return [block for name, path in names.items() if name not in TESTED_ELSEWHERE for block in read_blocks(path)]


def programs() -> list[Block]:
    """What is run for real: bash and python, each `continues` block joined to the one before it."""
    joined: list[Block] = []
    for block in all_blocks():
        if block.language not in ("bash", "python") or block.marks.keys() & {"dry run", "not run", "serve"}:
            continue
        if "continues" in block.marks:
            before = next(one for one in reversed(joined) if one.language == block.language)
            assert before.file == block.file, f"{block} continues nothing"
            before.text += block.text
            before.marks.update(block.marks)
        else:
            joined.append(block)
    return joined


def prose(path: Path) -> str:
    """A document without its fenced blocks and comments."""
    text = re.sub(r"^(```+)[a-z]*$.*?^\1$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def section(path: Path, heading: str) -> str:
    """The text under a heading, up to the next heading of its level or above."""
    text = path.read_text()
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, flags=re.MULTILINE)
    assert found is not None, f"{path.name} has no heading {heading!r}"
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, flags=re.MULTILINE)
    return rest[: end.start()] if end else rest


def table(text: str) -> list[list[str]]:
    """Rows of the first table in `text`, cells stripped, without the head."""
    rows: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("|"):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif rows:
            break
    assert len(rows) > 2, "there is no table"
    return rows[2:]


def coded(cell: str) -> list[str]:
    """The `code` in a cell, or in any text without its fenced blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^(```+)[a-z]*$.*?^\1$", "", cell, flags=re.MULTILINE | re.DOTALL))
