from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import REPOSITORY, all_blocks
from tests.e2e.server import RunningServer, running_server


@pytest.fixture(scope="package")
def server() -> Iterator[RunningServer]:
    """The default model on a free port, for as long as the documents are tested."""
    with running_server() as running:
        yield running


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader would stand: the repository (as links), and the files that the documents show."""
    place = tmp_path_factory.mktemp("reader")
    for entry in REPOSITORY.iterdir():
        if not entry.name.startswith("."):
            (place / entry.name).symlink_to(entry)
    for block in all_blocks():
        if "file" in block.marks:
            target = place / block.marks["file"]
            assert not target.exists(), f"{block}: the file {target.name} is there already"
            target.write_text(block.text)
    return place


@pytest.fixture(scope="package")
def environment() -> dict[str, str]:
    """A reader's environment: the commands of this virtual environment, no progress bars."""
    binaries = os.path.dirname(sys.executable)
    return {**os.environ, "PATH": os.pathsep.join((binaries, os.environ["PATH"]))}
