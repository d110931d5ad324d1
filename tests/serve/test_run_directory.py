from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llm_inference.serve.run_directory import run_directory, sweep

_HOLD = """
import sys
from llm_inference.serve.run_directory import run_directory
with run_directory() as path:
    (path / "socket").touch()
    print(path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def hold() -> tuple[subprocess.Popen[str], Path]:
    """Another process that holds a run directory until its standard input closes."""
    process = subprocess.Popen([sys.executable, "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.communicate()


def test_it_is_private_and_goes_with_its_block(parent: Path) -> None:
    with run_directory() as path:
        assert path.parent == parent
        assert path.stat().st_mode & 0o777 == 0o700
    assert list(parent.iterdir()) == []


def test_what_a_killed_server_left_is_swept_by_the_next(parent: Path) -> None:
    process, left = hold()
    process.send_signal(signal.SIGKILL)
    end(process)
    assert (left / "socket").exists()
    with run_directory() as path:
        assert list(parent.iterdir()) == [path]


def test_that_of_a_living_server_stays(parent: Path) -> None:
    process, held = hold()
    with run_directory():
        assert (held / "socket").exists()
    end(process)
    assert not held.exists()


def test_what_only_looks_like_one_stays(parent: Path) -> None:
    young = parent / "llm-inference-young"
    young.mkdir()
    foreign = parent / "llm-inference-notes"
    foreign.mkdir()
    (foreign / "text").touch()
    os.utime(foreign, (0, 0))
    elsewhere = parent / "target"
    elsewhere.mkdir()
    (parent / "llm-inference-link").symlink_to(elsewhere)
    (parent / "llm-inference-file").touch()
    sweep(parent)
    assert len(list(parent.iterdir())) == 5


def test_an_old_empty_one_without_a_lock_goes(parent: Path) -> None:
    old = parent / "llm-inference-old"
    old.mkdir()
    os.utime(old, (0, 0))
    sweep(parent)
    assert not old.exists()
