"""Every command and program in the documents does what it says: run for real, or checked by a dry run."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from llm_inference.cli import options
from llm_inference.cli.main import build_parser
from llm_inference.config.load import load_config
from tests.docs.blocks import DOCUMENTS, LANGUAGES, REPOSITORY, TESTED_ELSEWHERE, Block, all_blocks, programs
from tests.e2e.server import RunningServer, running_server

BLOCKS = all_blocks()
#: (document, reason) of every block that is neither run nor checked. Think twice before making it longer.
NOT_RUN: list[tuple[str, str]] = [
    ("README.md", "installs packages"),
    ("docs/configuration.md", "wrong on purpose"),
]


def marked(name: str) -> list[Block]:
    return [block for block in BLOCKS if name in block.marks]


def test_every_block_says_its_language() -> None:
    assert BLOCKS
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []


def test_blocks_that_nobody_runs_are_counted() -> None:
    assert [(block.file, block.marks["not run"]) for block in marked("not run")] == NOT_RUN


@pytest.mark.e2e
@pytest.mark.parametrize("block", programs(), ids=str)
def test_it_runs(block: Block, server: RunningServer, folder: Path, environment: dict[str, str]) -> None:
    text = block.text.replace("http://127.0.0.1:8000", server.url)
    command = ["bash", "-euo", "pipefail", "-c", text] if block.language == "bash" else [sys.executable, "-c", text]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        input=block.marks.get("stdin", ""),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == int(block.marks.get("exit", "0")), f"{block}\n{done.stdout}\n{done.stderr}"
    expected = block.marks.get("expect", "")
    assert expected in done.stdout + (done.stderr if "exit" in block.marks else ""), f"{block}: {done.stdout}"


@pytest.mark.e2e
@pytest.mark.parametrize("block", marked("serve"), ids=str)
def test_it_serves(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    [command] = commands(block)
    assert command[:2] == ["llm-inference", "serve"]
    with running_server(command[2:]) as running, urllib.request.urlopen(f"{running.base_url}/models") as reply:
        names = [card["id"] for card in json.load(reply)["data"]]
    assert block.marks.get("expect", names[0]) in names


@pytest.mark.parametrize("block", marked("dry run"), ids=str)
def test_it_would_run(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    found = commands(block)
    assert found
    for command in found:
        while "=" in command[0]:  # VARIABLE=value before a command
            name, _, value = command.pop(0).partition("=")
            monkeypatch.setenv(name, value)
        check(command, block)


def commands(block: Block) -> list[list[str]]:
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def check(command: list[str], block: Block) -> None:
    """The command would start and do what it says; nothing is installed, started or measured."""
    if command[0] == "make":
        check_make(command, block)
    elif command[:2] == ["python", "scripts/serve.py"]:
        assert (REPOSITORY / "scripts" / "serve.py").is_file()
        check(["llm-inference", "serve", *command[2:]], block)
    elif command[0] == "llm-inference":
        args = build_parser().parse_args(command[1:])
        if command[1] == "serve":
            assert options.load(args).config.models
        elif command[1] in ("run", "chat") and getattr(args, "url", None) is None:
            assert options.load_model(args)
    else:
        pytest.fail(f"{block}: nobody here knows how to check {shlex.join(command)}")


def check_make(command: list[str], block: Block) -> None:
    # These tests may themselves run under make, whose settings would change what is printed.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "ARGS"))}
    done = subprocess.run(
        ["make", "-n", *command[1:]], cwd=REPOSITORY, capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, f"{block}: {done.stderr}"
    if command[1] == "serve":
        # The very command that the server of `test_it_runs` is.
        arguments = command[2].removeprefix("ARGS=") if len(command) > 2 else ""
        last = done.stdout.splitlines()[-1].split()
        assert last == ["exec", ".venv/bin/llm-inference", "serve", *arguments.split()]
        check(["llm-inference", "serve", *arguments.split()], block)
    elif command[1] in ("test", "check"):
        tool = {"test": "-m pytest", "check": "bin/ruff check ."}[command[1]]
        assert tool in done.stdout


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "yaml" and "not run" not in block.marks], ids=str
)
def test_every_yaml_loads(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(block.text)
    variables = {"API_KEY": "secret", "MODEL_FILE": "model.gguf"}
    assert load_config(file, environ=variables).config.models


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "json"], ids=str)
def test_every_json_parses(block: Block) -> None:
    assert json.loads(block.text)


def test_ci_calls_what_the_readme_calls() -> None:
    ci = (REPOSITORY / ".ci" / "run").read_text().splitlines()
    assert "make check" in ci
    assert "make test" in ci


def test_the_documents_are_there() -> None:
    wanted = {"README", "structure", "configuration", "api", "models", "operations", "python"}
    assert wanted <= {path.stem for path in DOCUMENTS}


@pytest.mark.parametrize("document", TESTED_ELSEWHERE)
def test_the_other_test_is_there(document: str) -> None:
    assert Path(document).name in (REPOSITORY / TESTED_ELSEWHERE[document]).read_text()
