"""How a foreign engine's server is started: its program, our configuration as its flags, its flags checked.

Flags drift between versions, so every flag, ours and the user's, is looked up in the installed program's own `--help`
before it is launched. Runs nothing but that; processes are `managed.py`'s business.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from llm_inference.config.schema import ModelConfig
from llm_inference.errors import ConfigError
from llm_inference.sources.cache import default_cache_dir

HELP_TIMEOUT_S = 180.0
#: Keys of `engine_args` that are ours and no flags.
OWN_KEYS = frozenset({"program", "command", "env", "fields"})
_FLAG = re.compile(r"(?<![\w-])--?[A-Za-z0-9][\w-]*")


@dataclass(frozen=True, slots=True)
class Advice:
    """A last word of a dying server (a regular expression) and what to do about it."""

    pattern: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One server to be started. `source` is what the engine is given as its model: a path, or a name of its own."""

    model: ModelConfig
    source: str
    port: int
    by_module: bool = False
    host: str = "127.0.0.1"

    @property
    def served_name(self) -> str:
        return self.model.name

    def said(self, key: str) -> Any:
        """The configuration's value of `key`, or None where it is only our default."""
        return getattr(self.model, key) if key in self.model.model_fields_set else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """An engine's program and the flags for a plan.

    Looked for as `program` (then `command`, then the flags), or as `python -m` one of `modules` in the engine's venv.
    """

    program: str
    arguments: Callable[[Plan], Sequence[str]]
    install: str
    modules: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    help_flags: tuple[str, ...] = ("--help",)
    #: What `source` is: a directory in the hub's layout, a GGUF file, or the engine's own name for a model.
    needs: Literal["directory", "gguf", "name"] = "directory"
    env: Callable[[Plan], dict[str, str]] = lambda plan: {}
    advice: tuple[Advice, ...] = ()
    #: The server is called by `model` rather than by our `name` for it.
    serves_source: bool = False
    ready_timeout_s: float = 1800.0


def flag(name: str, value: Any) -> list[str]:
    """`name value`; nothing where the value is None or "auto"."""
    return [] if value is None or value == "auto" else [name, str(value)]


def find_program(name: str, launch: Launch, program: str | None) -> tuple[list[str], bool]:
    """(the beginning of the command line, whether it is `python -m`). Raises `ConfigError` that says how to install."""
    if program is not None:
        path = shutil.which(os.path.expanduser(program))
        if path is None:
            raise ConfigError(f"engine_args.program: {program!r} is no program that can be run")
        if Path(path).name.startswith("python") and launch.modules:
            return [path, "-m", launch.modules[0]], True
        return [path, *launch.command], False
    venv = default_cache_dir() / "engines" / name / "venv" / "bin"
    # Its own venv first: whoever installed one there meant it to be used.
    found = shutil.which(launch.program, path=str(venv))
    python = venv / "python"
    if found is None and launch.modules and python.exists():
        return [str(python), "-m", launch.modules[0]], True
    found = found or shutil.which(launch.program)
    if found is not None:
        return [found, *launch.command], False
    raise ConfigError(
        f"engine: {name!r} is not installed: there is no {launch.program} on PATH and none in {venv}. "
        f"Install it ({launch.install}), name it in engine_args.program, or give the `url` of one that runs"
    )


def own_command(arguments: dict[str, Any]) -> list[str] | None:
    """`engine_args.command`, such as `docker run … image`, before our flags. None: not said. Raises `ConfigError`."""
    said = arguments.get("command")
    if said is None:
        return None
    if not isinstance(said, list) or not said or not all(isinstance(word, str) and word for word in said):
        raise ConfigError('engine_args.command: must be a list of words, such as ["docker", "run", "--rm", …]')
    if "program" in arguments:
        raise ConfigError("engine_args: `command` and `program` both say what to start; keep one")
    path = shutil.which(os.path.expanduser(said[0]))
    if path is None:
        raise ConfigError(f"engine_args.command: {said[0]!r} is no program that can be run")
    return [path, *said[1:]]


def fill_command(command: Sequence[str], plan: Plan) -> list[str]:
    """`{model}` becomes the path or name of the model, `{port}` the port that our flags say, too."""
    return [word.replace("{model}", plan.source).replace("{port}", str(plan.port)) for word in command]


def engine_flags(arguments: dict[str, Any]) -> list[str]:
    """`engine_args` as flags: `a_b: 8` → `--a-b 8`; true is a flag alone, false its `--no-` form."""
    flags: list[str] = []
    for key, value in arguments.items():
        if key in OWN_KEYS:
            continue
        name = key if key.startswith("-") else "--" + key.replace("_", "-")
        if value is True:
            flags.append(name)
        elif value is False:
            flags.append("--no-" + name.lstrip("-"))
        elif isinstance(value, list):
            flags += [name, *(str(item) for item in value)]
        elif isinstance(value, dict):
            flags += [name, msgspec.json.encode(value).decode()]
        elif value is not None:
            flags += [name, str(value)]
    return flags


def merge(ours: Sequence[str], theirs: Sequence[str]) -> list[str]:
    """Our flags followed by the user's; what the user says too is left out of ours."""
    said = {_stem(item) for item in theirs if _is_flag(item)}
    kept: list[str] = []
    dropping = False
    for item in ours:
        if _is_flag(item):
            dropping = _stem(item) in said
        if not dropping:
            kept.append(item)
    return [*kept, *theirs]


def check_flags(name: str, program: Sequence[str], argv: Sequence[str], theirs: Sequence[str], help_text: str) -> None:
    """Every flag of `argv` stands in the program's help. Raises `ConfigError` that names the first that does not."""
    known = set(_FLAG.findall(help_text))
    if not known:
        return  # a program that shows no flags cannot be checked
    for item in argv:
        if not _is_flag(item) or item in known:
            continue
        mine = item not in theirs
        near = difflib.get_close_matches(item, sorted(known), n=1, cutoff=0.5)
        hint = f"; the nearest that it has is {near[0]}" if near else ""
        whose = "our configuration needs" if mine else "engine_args gives"
        raise ConfigError(
            f"engine {name!r}: {whose} {item}, which the installed {Path(program[0]).name} does not have{hint}. "
            "Its flags differ between versions"
        )


def read_help(program: Sequence[str], help_flags: Sequence[str]) -> str:
    """What the installed program says of its flags. Raises `ConfigError` when it cannot even say that."""
    failure = ""
    for help_flag in help_flags:
        try:
            done = subprocess.run(  # noqa: S603 - the program that the configuration names
                [*program, help_flag], capture_output=True, text=True, timeout=HELP_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"{' '.join(program)} {help_flag} fails: {error}") from error
        text = done.stdout + done.stderr
        if done.returncode == 0:
            return text
        failure = text[-600:]
    raise ConfigError(f"{' '.join(program)} {help_flags[-1]} fails; its last words:\n{failure}")


def advise(launch: Launch, last_words: str) -> str:
    """What to do about a server that died saying this; "" where nothing is known."""
    for entry in launch.advice:
        if re.search(entry.pattern, last_words, re.IGNORECASE):
            return entry.advice
    return ""


def _is_flag(item: str) -> bool:
    return item.startswith("-") and not re.fullmatch(r"-?\d+(\.\d+)?", item)


def _stem(item: str) -> str:
    return item.lstrip("-").removeprefix("no-")
