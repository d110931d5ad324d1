"""The library is made once, made anew when what it comes from changes, and what hinders it is said."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from llm_inference.errors import StartupError
from llm_inference.native.runner.compiled import build
from llm_inference.native.runner.compiled.build import LEVELS, find_or_build, obstacle, readiness

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "answer.h").write_text("int half(void);\n")
    (folder / "answer.c").write_text('#include "answer.h"\nint answer(void) { return 2 * half(); }\n')
    (folder / "half.c").write_text('#include "answer.h"\nint half(void) { return 21; }\n')
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that compile, as they are run."""
    commands: list[list[str]] = []
    plain = build._run

    def noted(command: list[str], what: str) -> str:
        if "-o" in command:
            commands.append(command)
        return plain(command, what)

    monkeypatch.setattr(build, "_run", noted)
    return commands


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_it_is_compiled_once(sources: Path, cache: Path, compilations: list[list[str]]) -> None:
    assert readiness(sources, cache).startswith("to be compiled at the first start by ")
    path = find_or_build(sources, cache)
    assert readiness(sources, cache).startswith("ready: compiled by ")
    assert ctypes.CDLL(str(path)).answer() == 42
    assert path.parent == cache / "compiled"
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o644
    assert find_or_build(sources, cache) == path
    (command,) = compilations
    assert "-march=native" in command
    assert [Path(word).name for word in command if word.endswith(".c")] == ["answer.c", "half.c"]


@pytest.mark.parametrize("changed", ["half.c", "answer.h", "CPU", "compiler", "flag of CC"])
def test_a_change_makes_another_library(
    changed: str, sources: Path, cache: Path, compilations: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = find_or_build(sources, cache)
    if changed == "CPU":
        monkeypatch.setattr(build, "read_cpu_flags", lambda: frozenset({"sse2"}))
    elif changed == "compiler":
        cc = program(
            cache, "other-cc", f'case "$1" in --version) echo other 1.0;; *) exec {shutil.which("cc")} "$@";; esac'
        )
        monkeypatch.setenv("CC", str(cc))
    elif changed == "flag of CC":
        monkeypatch.setenv("CC", "cc -DQUICK=1")
    else:
        (sources / changed).write_text((sources / changed).read_text().replace("21", "22") + "\n")
    after = find_or_build(sources, cache)
    assert after != before
    assert len(compilations) == 2
    assert ctypes.CDLL(str(after)).answer() == (44 if changed == "half.c" else 42)
    assert before.exists()


def test_a_library_that_others_could_have_written_is_not_loaded(
    sources: Path, cache: Path, compilations: list[list[str]]
) -> None:
    path = find_or_build(sources, cache)
    path.chmod(0o666)
    assert find_or_build(sources, cache) == path
    assert len(compilations) == 2
    assert path.stat().st_mode & 0o777 == 0o644


def test_two_processes_at_once(sources: Path, cache: Path) -> None:
    code = (
        "import ctypes, sys; from pathlib import Path\n"
        "from llm_inference.native.runner.compiled.build import find_or_build\n"
        "print(ctypes.CDLL(str(find_or_build(Path(sys.argv[1]), Path(sys.argv[2])))).answer())"
    )
    command = [sys.executable, "-c", code, str(sources), str(cache)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=120)[0] for process in both] == ["42\n", "42\n"]
    assert len(list((cache / "compiled").iterdir())) == 1


def test_without_a_compiler(sources: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as without:
        without.setenv("PATH", str(tmp_path))
        without.delenv("CC", raising=False)
        with pytest.raises(StartupError, match=r"no C compiler \(none of cc, gcc, clang is on PATH\); install gcc"):
            find_or_build(sources, cache)
        said = obstacle(sources, cache)
        assert said is not None
        assert "apt-get install gcc" in said
        assert readiness(sources, cache) == said
        without.setenv("CC", "no-such-cc -m64")
        with pytest.raises(StartupError, match="CC names no-such-cc, which is not there"):
            find_or_build(sources, cache)
        without.setenv("CC", 'gcc "-O1')
        with pytest.raises(StartupError, match=r"CC is 'gcc \"-O1', which is no command \(No closing quotation\)"):
            find_or_build(sources, cache)
    path = find_or_build(sources, cache)
    assert obstacle(sources, cache) is None
    # One that was made before is taken all the same.
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert find_or_build(sources, cache) == path


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 3", r"cannot say its version: exit code 3"),
        ('case "$1" in --version) echo fine;; *) echo "cc1: out of luck" >&2; exit 1;; esac', "cc1: out of luck"),
        ('case "$1" in --version) echo fine;; *) exit 0;; esac', r"cannot be kept or loaded"),
    ],
)
def test_a_broken_compiler(
    script: str, message: str, sources: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one says that all is well and writes nothing."""
    monkeypatch.setenv("CC", str(program(tmp_path, "broken-cc", script)))
    with pytest.raises(StartupError, match=message):
        find_or_build(sources, cache)
    assert not cache.exists() or not list((cache / "compiled").iterdir())


def test_sources_that_do_not_compile(sources: Path, cache: Path) -> None:
    (sources / "half.c").write_text("int half(void) { return }\n")
    with pytest.raises(StartupError, match=r"cannot compile the kernels: .*half\.c:1.*error"):
        find_or_build(sources, cache)
    assert not list((cache / "compiled").iterdir())


def test_a_compiler_that_hangs(sources: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_LIMIT_S", 0.2)
    monkeypatch.setenv("CC", str(program(tmp_path, "slow-cc", "exec sleep 60")))
    with pytest.raises(StartupError, match="timed out after"):
        find_or_build(sources, cache)


def test_a_cache_that_cannot_be_written(sources: Path, tmp_path: Path) -> None:
    """A file where the folder should be: the superuser, too, is stopped by it."""
    (tmp_path / "cache").write_text("")
    with pytest.raises(StartupError, match=r"cannot be kept or loaded.*LLM_INFERENCE_CACHE"):
        find_or_build(sources, tmp_path / "cache")


def test_a_package_that_cannot_be_written_is_only_read(sources: Path, cache: Path) -> None:
    sources.chmod(0o555)
    before = sorted(sources.iterdir())
    find_or_build(sources, cache)
    assert sorted(sources.iterdir()) == before


def test_no_sources(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(StartupError, match="install the package anew"):
        find_or_build(tmp_path, cache)


def test_what_was_made_for_images_is_found_beside_the_package(
    sources: Path, cache: Path, compilations: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = build.build_portable(sources, sources)
    levels = [name for name, level in LEVELS.items() if level.machine == os.uname().machine]
    assert [path.name.split("-", 2)[2] for path in made] == [f"{name}.so" for name in levels]
    flags = build.read_cpu_flags()
    fitting = [path for path, name in zip(made, levels, strict=True) if LEVELS[name].needs <= flags]
    monkeypatch.setenv("PATH", str(tmp_path))
    for path in made:
        path.chmod(0o664)  # as images have it that any user of a group may run
    if fitting:
        assert find_or_build(sources, cache) == fitting[0]
        assert ctypes.CDLL(str(fitting[0])).answer() == 42
        assert readiness(sources, cache) == "ready: the library came with the package"
    for name, path in zip(levels, made, strict=True):
        monkeypatch.setattr(build, "read_cpu_flags", lambda name=name: LEVELS[name].needs)
        assert find_or_build(sources, cache) == path
    monkeypatch.setattr(build, "read_cpu_flags", lambda: frozenset({"sse2"}))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(StartupError, match="no C compiler"):
        find_or_build(sources, cache)
    assert len(compilations) == len(made)
    # Sources that were changed since then are not what lies there.
    (sources / "half.c").write_text("int half(void) { return 1; }\n")
    with pytest.raises(StartupError, match="no C compiler"):
        find_or_build(sources, cache)


@pytest.mark.slow
def test_the_package_carries_the_sources(repository: Path, tmp_path: Path) -> None:
    """And no library that was made on a desk."""
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(repository)]
    subprocess.run(pip, check=True, timeout=300)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name).name for name in archive.namelist() if "/runner/compiled/" in name}
    assert {file.name for file in build._files(build.HERE)} <= names
    assert not [name for name in names if name.endswith(".so")]


def test_the_command(
    sources: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("LLM_INFERENCE_CACHE", str(cache))
    build.main([], sources)
    path = Path(capsys.readouterr().out.strip())
    assert path.parent == cache / "compiled"
    build.main(["--portable", "--into", str(tmp_path / "image")], sources)
    printed = capsys.readouterr().out.split()
    assert sorted(printed) == sorted(map(str, (tmp_path / "image").iterdir()))
    with pytest.raises(SystemExit, match="2"):
        build.main(["--into", str(tmp_path)], sources)
    monkeypatch.setenv("CC", "no-such-cc")
    with pytest.raises(SystemExit, match="2"):
        build.main(["--portable", "--into", str(tmp_path / "none")], sources)
    assert "error: there is no C compiler" in capsys.readouterr().err
