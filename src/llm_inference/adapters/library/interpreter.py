"""Which Python a library engine's worker runs under: the one of the engine's venv, or ours where it has the library."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from llm_inference.errors import ConfigError
from llm_inference.sources.cache import default_cache_dir

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Library:
    """A library that is an engine. `module` is what is imported, `distribution` what pip calls it."""

    name: str
    module: str
    distribution: str

    def python(self, program: str | None) -> Path:
        """`engine_args.program`, else the venv's, else our own. Raises `ConfigError` that says how to install."""
        if program is not None:
            found = shutil.which(os.path.expanduser(program))
            if found is None:
                raise ConfigError(f"engine_args.program: {program!r} is no Python interpreter that can be run")
            return Path(found)
        venv = default_cache_dir() / "engines" / self.name / "venv" / "bin" / "python"
        if venv.exists():
            return venv
        if importlib.util.find_spec(self.module) is not None:
            return Path(sys.executable)
        raise ConfigError(
            f"engine: {self.name!r} is not installed: {venv} does not exist, and this Python has no {self.module}. "
            f"Install it (llm-inference engines install {self.name}), or name a Python that has it in "
            "engine_args.program"
        )

    def version(self, python: Path) -> str:
        """The installed version. Raises `ConfigError` when that interpreter does not have it."""
        code = f"import importlib.metadata as m; print(m.version({self.distribution!r}))"
        try:
            done = subprocess.run(  # noqa: S603 - the interpreter that the configuration names
                [str(python), "-I", "-c", code], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"engine: {python} cannot be run: {error}") from error
        if done.returncode:
            raise ConfigError(
                f"engine: {self.name!r} is not installed: {python} has no {self.distribution}; "
                f"install it (llm-inference engines install {self.name})"
            )
        return done.stdout.strip()
