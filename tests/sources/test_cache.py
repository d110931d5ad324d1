from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import time
from pathlib import Path

import pytest

from llm_inference.errors import SourceError
from llm_inference.sources.cache import ModelCache, default_cache_dir, require_free_space


def build(directory: Path) -> None:
    (directory / "sub").mkdir()
    (directory / "sub" / "weights").write_bytes(b"12345")


def forbidden(directory: Path) -> None:
    raise AssertionError(f"{directory} must not be built")


def visible(root: Path) -> list[str]:
    """What a user sees: everything but locks."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.suffix != ".lock")


def test_an_entry_is_built_once(tmp_path: Path) -> None:
    cache = ModelCache(tmp_path / "not" / "there")
    assert cache.find("kind", "key") is None
    assert cache.keys("kind") == []
    path = cache.entry("kind", "key", build)
    assert (path / "sub" / "weights").read_bytes() == b"12345"
    assert cache.entry("kind", "key", forbidden) == path
    assert cache.find("kind", "key") == path
    assert cache.keys("kind") == ["key"]


@pytest.mark.parametrize("damage", ["shorten", "remove", "manifest", "garbage", "list"])
def test_a_damaged_entry_is_built_anew(tmp_path: Path, damage: str) -> None:
    cache = ModelCache(tmp_path)
    path = cache.entry("kind", "key", build)
    if damage == "shorten":
        (path / "sub" / "weights").write_bytes(b"1")
    elif damage == "remove":
        shutil.rmtree(path / "sub")
    elif damage == "manifest":
        (path / ".entry.json").unlink()
    else:
        (path / ".entry.json").write_text("nonsense" if damage == "garbage" else json.dumps({"files": [1]}))
    assert cache.find("kind", "key") is None
    assert (cache.entry("kind", "key", build) / "sub" / "weights").read_bytes() == b"12345"


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(directory: Path) -> None:
        build(directory)
        raise SourceError("no good")

    with pytest.raises(SourceError, match="no good"):
        ModelCache(tmp_path).entry("kind", "key", fail)
    assert visible(tmp_path) == ["kind"]


def test_what_a_dead_process_left_is_thrown_away(tmp_path: Path) -> None:
    left = tmp_path / "kind" / ".key.partial"
    left.mkdir(parents=True)
    (left / "half").write_text("x")
    path = ModelCache(tmp_path).entry("kind", "key", build)
    assert not (path / "half").exists()
    assert not left.exists()


def _build_slowly(root: Path, log: Path) -> None:
    def slow(directory: Path) -> None:
        with log.open("a") as file:
            file.write("built\n")
        time.sleep(0.3)
        build(directory)

    ModelCache(root).entry("kind", "key", slow)


def test_two_processes_build_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_build_slowly, args=(tmp_path / "cache", log)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert log.read_text() == "built\n"


def test_a_complete_entry_serves_from_a_read_only_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ModelCache(tmp_path)
    path = cache.entry("kind", "key", build)

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    monkeypatch.setattr(Path, "mkdir", denied)
    assert cache.entry("kind", "key", forbidden) == path
    with pytest.raises(SourceError, match=r"cannot be written \(Permission denied.*LLM_INFERENCE_CACHE"):
        cache.entry("kind", "other", build)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EROFS, "cannot be written"),
        (errno.EIO, "the model cache .* failed"),
    ],
)
def test_disk_errors_are_explained(tmp_path: Path, number: int, message: str) -> None:
    def fail(directory: Path) -> None:
        raise OSError(number, os.strerror(number), str(directory))

    with pytest.raises(SourceError, match=message):
        ModelCache(tmp_path).entry("kind", "key", fail)
    assert visible(tmp_path) == ["kind"]


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="cannot be written"):
        ModelCache(tmp_path / "file").entry("kind", "key", build)


def test_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("LLM_INFERENCE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert default_cache_dir() == tmp_path / ".cache" / "llm-inference"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_dir() == tmp_path / "xdg" / "llm-inference"
    monkeypatch.setenv("LLM_INFERENCE_CACHE", "~/own")
    assert default_cache_dir() == tmp_path / "own"


def test_free_space_is_checked_beforehand(tmp_path: Path) -> None:
    require_free_space(tmp_path, 1, "nothing")
    with pytest.raises(SourceError, match=r"converting x needs .* GiB in .*make room"):
        require_free_space(tmp_path, 2**60, "converting x")
