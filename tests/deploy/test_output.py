"""Files on disk: nothing is overwritten unasked, and nothing is written by halves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llm_inference.deploy.output import write
from llm_inference.errors import ConfigError

FILES = {"a.yaml": "a: 1\n", "base/b.yaml": "b: ü\n"}


def test_new_files_are_written(tmp_path: Path) -> None:
    assert write(FILES, tmp_path / "new") == ["a.yaml", "base/b.yaml"]
    assert (tmp_path / "new" / "base" / "b.yaml").read_text("utf-8") == "b: ü\n"


def test_the_same_again_writes_nothing(tmp_path: Path) -> None:
    write(FILES, tmp_path)
    before = (tmp_path / "a.yaml").stat().st_mtime_ns
    assert write(FILES, tmp_path) == []
    assert (tmp_path / "a.yaml").stat().st_mtime_ns == before


def test_a_changed_file_stops_everything(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "b.yaml").write_text("mine\n")
    with pytest.raises(ConfigError, match=r"base/b\.yaml: there already, and different; nothing was written"):
        write(FILES, tmp_path)
    assert not (tmp_path / "a.yaml").exists()
    assert write(FILES, tmp_path, force=True) == ["a.yaml", "base/b.yaml"]


def test_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "secrets.env").write_text("KEY=1\n")
    write(FILES, tmp_path, force=True)
    assert (tmp_path / "secrets.env").read_text() == "KEY=1\n"


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").mkdir()
    with pytest.raises(ConfigError, match="is in the way"):
        write(FILES, tmp_path)


def test_a_file_for_a_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(ConfigError, match="cannot be written"):
        write(FILES, tmp_path / "out")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="Permission denied"):
        write(FILES, tmp_path / "out")
