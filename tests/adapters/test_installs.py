from __future__ import annotations

import dataclasses
import fcntl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_inference.adapters import installs
from llm_inference.adapters.installs import EngineStore, Installed, find_python
from llm_inference.adapters.recipes import Build, Recipe
from llm_inference.engine.choose import Abilities
from llm_inference.errors import ConfigError, SourceError, StartupError
from tests.adapters.fake_pip import write_fake_python

BUILD = Build(steps=(("torch==2.13.0",), ("an-engine==1.2.3", "extra==4")), download_bytes=1, disk_bytes=1)
RECIPE = Recipe(
    name="e",
    what="an engine",
    kind="server",
    distribution="an-engine",
    program="no-such-program-anywhere",
    cpu=BUILD,
    links={"serve-it": "an_engine/bin/server"},
    abilities=Abilities(engine="e", formats=frozenset(("gguf",)), devices=frozenset(("cpu",))),
)

Install = Callable[..., installs.Stamp]


def recipe(*steps: tuple[str, ...], **changes: object) -> Recipe:
    return dataclasses.replace(RECIPE, cpu=dataclasses.replace(BUILD, steps=steps, **changes))


@pytest.fixture
def store(tmp_path: Path) -> EngineStore:
    return EngineStore(tmp_path / "engines")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAKE_PIP_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


@pytest.fixture
def install(store: EngineStore, tmp_path: Path, log: Path) -> Install:
    python = write_fake_python(tmp_path)

    def run(what: Recipe = RECIPE, lines: list[tuple[str, bool]] | None = None) -> installs.Stamp:
        said = lines if lines is not None else []
        return store.install(what, gpu=False, python=python, report=lambda line, step: said.append((line, step)))

    return run


def test_it_installs_step_by_step_and_finds_what_it_installed(store: EngineStore, install: Install, log: Path) -> None:
    assert store.find(RECIPE) is None
    lines: list[tuple[str, bool]] = []
    stamp = install(RECIPE, lines)
    venv = store.venv("e")
    assert store.find(RECIPE) == Installed("1.2.3", venv, "installed")
    assert stamp.versions == {"an-engine": "1.2.3", "extra": "4", "torch": "2.13.0"}
    assert (stamp.python, stamp.requirements) == ("3.11.7", BUILD.steps)
    assert stamp.size_bytes > 0
    assert store.stamp("e") == stamp
    commands = log.read_text().splitlines()
    assert [line.split()[1] for line in commands] == ["venv", "pip", "pip"]
    assert commands[1].endswith(" torch==2.13.0")
    assert commands[2].endswith(" an-engine==1.2.3 extra==4")
    assert [line for line, step in lines if step][1] == "[2/3] python -m pip install torch==2.13.0"
    assert ("Collecting extra==4", False) in lines
    linked = venv / "bin" / "serve-it"
    assert subprocess.run([linked], capture_output=True, text=True, check=True).stdout == "served with\n"


def test_a_dry_plan_is_what_is_then_run(store: EngineStore, install: Install, log: Path, tmp_path: Path) -> None:
    plan = store.plan(RECIPE, BUILD, str(tmp_path / "fake-python"), store.next_target("e"))
    assert not store.root.exists()
    install()
    assert [" ".join(command.argv[1:]) for command in plan] == log.read_text().splitlines()


def test_the_build_has_its_environment_and_leaves_out_what_does_harm(
    store: EngineStore, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "of-this-process")
    monkeypatch.setattr(installs, "available_cpus", lambda: 2)
    what = recipe(
        ("an-engine==1", "harm==2"), env={"JOBS": "{cpus} of them"}, without=("harm",), without_programs=("useless",)
    )
    stamp = install(what)
    assert stamp.versions == {"an-engine": "1"}
    assert not (store.venv("e") / "bin" / "useless").exists()
    command = store.plan(what, what.build(gpu=False), "python", Path("target"))[1]
    assert str(command).startswith("JOBS='2 of them' target/bin/python -m pip install ")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("[Errno 28] No space left on device", "the disk is full"),
        ("NewConnectionError: Failed to establish a new connection", "PIP_INDEX_URL"),
        ("No matching distribution found for broken", "does not have that version"),
        ("a compiler failed", "exit code 7"),
    ],
)
def test_a_failure_says_why_and_leaves_nothing(
    error: str, advice: str, store: EngineStore, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_PIP_ERROR", error)
    with pytest.raises(StartupError, match=r"e could not be installed") as caught:
        install(recipe(("torch==1",), ("an-engine==1", "broken==1")))
    assert advice in caught.value.message
    assert error in caught.value.message
    assert store.find(RECIPE) is None
    assert [path.name for path in store.home("e").iterdir()] == [".lock"]


def test_a_failed_reinstall_keeps_the_old_one_and_a_good_one_replaces_it(store: EngineStore, install: Install) -> None:
    install()
    with pytest.raises(StartupError):
        install(recipe(("an-engine==2", "broken==1")))
    assert store.find(RECIPE) == Installed("1.2.3", store.venv("e"), "installed")
    install(recipe(("an-engine==3",)))
    assert store.find(RECIPE) == Installed("3", store.venv("e"), "installed")
    assert sorted(path.name for path in store.home("e").iterdir()) == [".lock", "venv", "venv-2"]


def test_an_install_that_was_killed_is_not_installed(store: EngineStore, install: Install, tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom tests.adapters import test_installs as t\n"
        "store = t.EngineStore(Path(sys.argv[1]))\n"
        "store.install(t.recipe(('an-engine==1', 'killed==1')), gpu=False, python=sys.argv[2], report=print)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(store.root), str(tmp_path / "fake-python")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == -9
    assert (store.home("e") / "venv-1").is_dir(), "the rest of the one that died"
    assert store.find(RECIPE) is None
    (store.home("e") / "venv-1" / "rest").touch()
    with pytest.raises(StartupError, match="another process"):
        install()  # its pip lives on for a moment
    time.sleep(1)
    install()
    assert store.find(RECIPE) is not None
    assert not (store.venv("e") / "rest").exists()


def test_two_at_once_are_refused(store: EngineStore, install: Install) -> None:
    store.home("e").mkdir(parents=True)
    with (store.home("e") / ".lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StartupError, match="another process is installing or removing e"):
            install()
    install()


def test_pip_that_ends_well_without_the_engine_is_a_failure(store: EngineStore, install: Install) -> None:
    with pytest.raises(StartupError, match=r"no an_engine/bin/server"):
        install(recipe(("nothing==1",)))
    with pytest.raises(StartupError, match="an-engine is not in"):
        install(dataclasses.replace(recipe(("other==1",)), links={}))
    assert store.find(RECIPE) is None


def test_room_tools_and_a_writable_place_are_asked_for_first(
    store: EngineStore, install: Install, log: Path, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=r"e needs .* free"):
        install(recipe(("an-engine==1",), disk_bytes=2**60))
    with pytest.raises(ConfigError, match="built from source, and no-such-compiler is not on PATH"):
        install(recipe(("an-engine==1",), tools=("no-such-compiler",)))
    assert not log.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="LLM_INFERENCE_CACHE"):
        EngineStore(tmp_path / "file").install(RECIPE, gpu=False, python="python", report=lambda line, step: None)
    with pytest.raises(StartupError, match="cannot be run"):
        store.install(RECIPE, gpu=False, python=str(tmp_path / "absent"), report=lambda line, step: None)


def test_a_venv_made_by_hand_counts_and_is_replaced(store: EngineStore, install: Install) -> None:
    install()
    venv = store.venv("e")
    real = venv.resolve()
    venv.unlink()
    real.rename(venv)
    (venv / installs.STAMP).unlink()
    assert store.find(RECIPE) == Installed("1.2.3", venv, "by hand")
    assert store.stamp("e") is None
    lines: list[tuple[str, bool]] = []
    install(RECIPE, lines)
    assert "made by hand" in lines[0][0]
    assert store.find(RECIPE) == Installed("1.2.3", venv, "installed")


def test_a_program_on_path_counts(store: EngineStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "no-such-program-anywhere"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert store.find(RECIPE) == Installed(None, program, "on PATH")
    info = tmp_path / "lib" / "python3.11" / "site-packages" / "an_engine-9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: an-engine\nVersion: 9\n")
    assert store.find(RECIPE) == Installed("9", program, "on PATH")
    assert store.find(dataclasses.replace(RECIPE, program=None)) is None


def test_removing(store: EngineStore, install: Install) -> None:
    assert not store.remove(RECIPE)
    install()
    assert store.remove(RECIPE)
    assert not store.home("e").exists()
    assert store.find(RECIPE) is None


def test_a_python_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_python(RECIPE) == sys.executable
    old = dataclasses.replace(RECIPE, min_python=(3, 7), max_python=(3, 8))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"needs Python 3\.7 to 3\.8; this is"):
        find_python(old)
    (tmp_path / "python3.8").write_text("#!/bin/sh\n")
    (tmp_path / "python3.8").chmod(0o755)
    assert find_python(old) == str(tmp_path / "python3.8")
