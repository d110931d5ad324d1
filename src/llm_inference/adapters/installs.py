"""Engines in venvs of their own: installed, found and removed. `<cache>/engines/<name>/` holds

    venv ─► venv-<number>     a link, set last: what it leads to is whole
    venv-<number>/            the venv, with `install.json`, which says what is in it
    .lock                     held while one process installs

An install that dies leaves a `venv-<number>` that nothing leads to, and the next one removes it. A real directory named
`venv` was made by hand; it counts as installed once the engine's distribution is in it. Imports no engine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Literal

import msgspec

from llm_inference.adapters.recipes import Build, Python, Recipe
from llm_inference.errors import ConfigError, StartupError
from llm_inference.sources.cache import default_cache_dir, require_free_space
from llm_inference.telemetry.devices import available_cpus

STAMP = "install.json"
#: Told of every line that pip says; the second argument is True for what begins a step.
Report = Callable[[str, bool], None]
_LAST_LINES = 12
_VENV = re.compile(r"venv-\d+")


class Stamp(msgspec.Struct, frozen=True):
    """What `install.json` says of an install that was finished."""

    engine: str
    requirements: tuple[tuple[str, ...], ...]
    versions: dict[str, str]
    python: str
    seconds: float
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Installed:
    """`version` is None where it cannot be told without running the engine."""

    version: str | None
    where: Path
    how: Literal["installed", "by hand", "on PATH"]


@dataclass(frozen=True, slots=True)
class Command:
    """One step of an install. `env` is set beside the process's own environment."""

    argv: tuple[str, ...]
    env: dict[str, str]

    def __str__(self) -> str:
        return " ".join([*(f"{key}={shlex.quote(value)}" for key, value in self.env.items()), shlex.join(self.argv)])


@dataclass(frozen=True, slots=True)
class EngineStore:
    """The engines under one cache directory. Nothing is created before `install`."""

    root: Path

    @classmethod
    def default(cls) -> EngineStore:
        return cls(default_cache_dir() / "engines")

    def home(self, name: str) -> Path:
        return self.root / name

    def venv(self, name: str) -> Path:
        return self.home(name) / "venv"

    def find(self, recipe: Recipe) -> Installed | None:
        """The engine's own venv if it is whole, else its program on PATH, else None."""
        venv = self.venv(recipe.name)
        version = _version(recipe, venv)
        if version is not None:
            return Installed(version, venv, "installed" if (venv / STAMP).is_file() else "by hand")
        program = shutil.which(recipe.program) if recipe.program is not None else None
        if program is None:
            return None
        return Installed(_version(recipe, Path(program).resolve().parent.parent), Path(program), "on PATH")

    def stamp(self, name: str) -> Stamp | None:
        """What was written when the install was finished; None for one made by hand, or none."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return msgspec.json.decode((self.venv(name) / STAMP).read_bytes(), type=Stamp)
        return None

    def plan(self, recipe: Recipe, build: Build, python: str, target: Path) -> tuple[Command, ...]:
        """The commands that make `target`; nothing is run."""
        pip = (str(target / "bin" / "python"), "-m", "pip")
        options = ("--disable-pip-version-check", "--no-input")
        env = {key: value.format(cpus=available_cpus()) for key, value in build.env.items()}
        installs = tuple(Command((*pip, "install", *options, *step), env) for step in build.steps)
        removal = (Command((*pip, "uninstall", "--yes", *build.without), {}),) if build.without else ()
        return (Command((python, "-m", "venv", str(target)), {}), *installs, *removal)

    def next_target(self, name: str) -> Path:
        """The directory that an install would make now."""
        used = [int(path.name.removeprefix("venv-")) for path in self._venvs(name)]
        return self.home(name) / f"venv-{max(used, default=0) + 1}"

    def install(self, recipe: Recipe, *, gpu: bool, python: str, report: Report) -> Stamp:
        """Make the venv anew; an older one serves until the new one is whole, and is then removed.

        Raises `ConfigError` for a machine that cannot have it, `SourceError` without room on the disk, `StartupError`
        with pip's last words, or while another process installs the same engine.
        """
        build = recipe.build(gpu=gpu)
        for tool in build.tools:
            if shutil.which(tool) is None:
                raise ConfigError(f"{recipe.name} is built from source, and {tool} is not on PATH; install it first")
        home = self.home(recipe.name)
        started = time.monotonic()
        try:
            home.mkdir(parents=True, exist_ok=True)
            require_free_space(home, build.disk_bytes, f"{recipe.name}")
            with _locked(home / ".lock", recipe.name) as lock:
                self._sweep(recipe.name)
                venv = self.venv(recipe.name)
                if venv.is_dir() and not venv.is_symlink():
                    report(f"{venv} was made by hand and will be replaced", True)
                target = self.next_target(recipe.name)
                try:
                    self._build(recipe, build, python, target, report, lock)
                    versions = _versions(target)
                    if not any(name in versions for name in (recipe.distribution, *recipe.also_known_as)):
                        raise StartupError(f"pip ended well, but {recipe.distribution} is not in {target}")
                    stamp = Stamp(
                        recipe.name, build.steps, versions, versions.pop("python", _python_of(target)),
                        round(time.monotonic() - started, 1), _size(target),
                    )  # fmt: skip
                    (target / STAMP).write_bytes(msgspec.json.format(msgspec.json.encode(stamp)))
                    self._switch(venv, target)
                finally:
                    self._sweep(recipe.name)
        except OSError as error:
            raise StartupError(
                f"{recipe.name} could not be installed in {home}: {error}; set LLM_INFERENCE_CACHE to a directory "
                "that can be written"
            ) from error
        return stamp

    def remove(self, recipe: Recipe) -> bool:
        """Whether there was anything to remove. Leaves what is on PATH alone."""
        home = self.home(recipe.name)
        if not home.is_dir():
            return False
        with _locked(home / ".lock", recipe.name):
            venv = self.venv(recipe.name)
            there = venv.exists() or venv.is_symlink()
            if venv.is_symlink():
                venv.unlink()
            else:
                shutil.rmtree(venv, ignore_errors=True)
            self._sweep(recipe.name)
            (home / ".lock").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # something of somebody else's is in it
            home.rmdir()
        return there

    def _build(self, recipe: Recipe, build: Build, python: str, target: Path, report: Report, lock: int) -> None:
        commands = self.plan(recipe, build, python, target)
        for number, command in enumerate(commands, start=1):
            report(f"[{number}/{len(commands)}] {_short(command)}", True)
            _run(command, recipe, report, lock)
        for name in build.without_programs:
            (target / "bin" / name).unlink(missing_ok=True)
        for name, place in recipe.links.items():
            found = next(target.glob(f"lib/python*/site-packages/{place}"), None)
            if found is None:
                raise StartupError(f"{recipe.name}: pip ended well, but there is no {place} in {target}")
            found.chmod(0o755)
            link = target / "bin" / name
            link.unlink(missing_ok=True)
            link.symlink_to(os.path.relpath(found, link.parent))

    def _switch(self, venv: Path, target: Path) -> None:
        """`venv` leads to `target` from one moment to the next."""
        link = venv.with_name("venv.new")
        link.unlink(missing_ok=True)
        link.symlink_to(target.name)
        if venv.is_dir() and not venv.is_symlink():
            shutil.rmtree(venv)
        link.replace(venv)

    def _sweep(self, name: str) -> None:
        """Remove every venv that nothing leads to. Under the lock."""
        current = os.readlink(self.venv(name)) if self.venv(name).is_symlink() else None
        for path in self._venvs(name):
            if path.name != current:
                shutil.rmtree(path, ignore_errors=True)

    def _venvs(self, name: str) -> list[Path]:
        home = self.home(name)
        return [path for path in home.iterdir() if _VENV.fullmatch(path.name)] if home.is_dir() else []


def find_python(recipe: Recipe) -> str:
    """A Python that the engine takes: this one if it fits, else one on PATH. Raises `ConfigError`."""
    low, high = recipe.min_python, recipe.max_python
    if low <= sys.version_info[:2] <= high:
        return sys.executable
    for minor in range(high[1], low[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found is not None:
            return found
    raise ConfigError(
        f"{recipe.name} needs Python {_dotted(low)} to {_dotted(high)}; this is {_dotted(sys.version_info[:2])}, and "
        "there is no other on PATH"
    )


@contextlib.contextmanager
def _locked(path: Path, name: str) -> Iterator[int]:
    """The kernel drops the lock when the last process that has this descriptor ends: also a pip that outlives us."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartupError(f"another process is installing or removing {name}; try again when it is done") from None
        yield file.fileno()


def _run(command: Command, recipe: Recipe, report: Report, lock: int) -> None:
    # Of a Python set up for this process, nothing may reach the venv's.
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")} | command.env
    last: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        process = subprocess.Popen(  # noqa: S603 - from the table of recipes
            command.argv,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            pass_fds=(lock,),
        )
    except OSError as error:
        raise StartupError(f"{command.argv[0]} cannot be run: {error}") from error
    with process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip():
                    last.append(line.rstrip())
                    report(line.rstrip(), False)
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        words = "\n".join(f"  {line}" for line in last)
        raise StartupError(
            f"{recipe.name} could not be installed{_advice(words)}. {_short(command)} ended with exit code "
            f"{process.returncode}; its last words:\n{words}"
        )


def _advice(words: str) -> str:
    if re.search(r"No space left on device|Disk quota exceeded", words):
        return ": the disk is full; make room, also where TMPDIR is, or set LLM_INFERENCE_CACHE to another disk"
    if re.search(r"NewConnectionError|name resolution|timed out|Network is unreachable|ProxyError|SSLError", words):
        return (
            ": pip does not reach its package index; behind a mirror, set pip's own PIP_INDEX_URL, without a network "
            "PIP_NO_INDEX=1 and PIP_FIND_LINKS to a folder of wheels"
        )
    if re.search(r"No matching distribution|Could not find a version", words):
        return (
            ": pip's index does not have that version for this Python and machine; if it is a mirror "
            "(PIP_INDEX_URL, PIP_FIND_LINKS), it may lack it"
        )
    return ""


def _short(command: Command) -> str:
    """A command as a person wants to read it: without paths."""
    argv = [word for word in command.argv if word not in ("--disable-pip-version-check", "--no-input")]
    return shlex.join(["python", *argv[1:]])


def _site_packages(venv: Path) -> list[str]:
    return [str(path) for path in sorted(venv.glob("lib/python*/site-packages"))]


def _version(recipe: Recipe, venv: Path) -> str | None:
    for name in (recipe.distribution, *recipe.also_known_as):
        for found in distributions(name=name, path=_site_packages(venv)):
            return found.version
    return None


def _versions(venv: Path) -> dict[str, str]:
    found = {one.metadata["Name"]: one.version for one in distributions(path=_site_packages(venv))}
    return dict(sorted((re.sub(r"[-_.]+", "-", name).lower(), version) for name, version in found.items()))


def _python_of(venv: Path) -> str:
    with contextlib.suppress(OSError):
        for line in (venv / "pyvenv.cfg").read_text().splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "version":
                return value.strip()
    return "unknown"


def _size(directory: Path) -> int:
    """Bytes that the files take; links count for nothing."""
    total = 0
    for place, _, names in os.walk(directory):
        total += sum(os.lstat(os.path.join(place, name)).st_size for name in names)
    return total


def _dotted(version: Python | tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)
