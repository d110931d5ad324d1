"""What holds for every document: links lead somewhere, no hosts and machine paths, commands in the prose exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from llm_inference.cli.main import COMMANDS, build_parser
from tests.docs.blocks import DOCUMENTS, REPOSITORY, prose

#: Documents, and code that users copy.
TEXTS = (
    *DOCUMENTS,
    *sorted((REPOSITORY / "examples").glob("*.py")),
    *sorted((REPOSITORY / "configs").iterdir()),
    REPOSITORY / "Makefile",
)
PICTURES = sorted((REPOSITORY / "docs" / "pictures").glob("*.svg"))
#: The only hosts that a text may name: this machine, examples by the rules of RFC 2606 and 5737, schema names.
HOSTS = ("127.0.0.1", "localhost", "0.0.0.0", "example.org", "json-schema.org", "192.0.2.10")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_URL = re.compile(r"(?:https?|wss?)://\[?([A-Za-z0-9.-]+)")
_HOST = re.compile(r"(?<![\w./@-])(?:[a-z0-9-]+\.)+(?:com|org|io|co|net|dev|ai|cn|cloud)(?![\w-])")
_MACHINE_PATH = re.compile(r"(?<![\w.}])/(?:work|tmp|root|home|Users|mnt|data)/")


def names(paths: tuple[Path, ...]) -> list[str]:
    return [path.relative_to(REPOSITORY).as_posix() for path in paths]


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as the usual renderers make them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=names(DOCUMENTS))
def test_links_lead_somewhere(path: Path) -> None:
    dead = []
    for link in _LINK.findall(prose(path)):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = path.parent / file if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


@pytest.mark.parametrize("path", TEXTS, ids=names(TEXTS))
def test_no_host_but_examples_and_no_machine_path(path: Path) -> None:
    text = path.read_text()
    hosts = {*_URL.findall(text), *_HOST.findall(text)}
    assert hosts <= set(HOSTS), "registries, hubs and other hosts are named by their kind, not by their address"
    assert _MACHINE_PATH.findall(text) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=names(DOCUMENTS))
def test_commands_in_the_prose_exist(path: Path, repository: Path) -> None:
    known = subprocess.run(["make", "help"], cwd=repository, capture_output=True, text=True, check=True).stdout
    targets = {line.split()[0] for line in known.splitlines()}
    text = prose(path)
    wrong = [target for target in re.findall(r"`make ([a-z-]+)", text) if target not in targets]
    wrong += [command for command in re.findall(r"`llm-inference ([a-z]+)", text) if command not in COMMANDS]
    flags = all_flags() | {"--cpus", "--cpuset-cpus", "--gpus", "--stop-timeout"}  # the container engine's
    wrong += [flag for flag in re.findall(r"`(--[a-z-]+)", text) if flag not in flags]
    assert wrong == []


def all_flags() -> set[str]:
    """Every flag of every command, read from the parser's own tree."""
    found: set[str] = set()
    parsers = [build_parser()]
    for parser in parsers:
        for action in parser._actions:
            found.update(action.option_strings)
            if isinstance(action.choices, dict):
                parsers.extend(action.choices.values())
    return found


def test_pictures_are_well_formed_and_described() -> None:
    assert PICTURES
    for picture in PICTURES:
        root = ElementTree.parse(picture).getroot()
        assert root.find("{http://www.w3.org/2000/svg}title") is not None
        assert "prefers-color-scheme: dark" in picture.read_text()
        assert any(picture.name in path.read_text() for path in DOCUMENTS), f"{picture.name} is shown nowhere"
