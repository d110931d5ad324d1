"""Where the validators are: on PATH, beside this Python, or in the folder that `install_tools.py` filled.

A test without its validator is skipped with the reason; with CI set it fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

#: The folder of `python -m tests.deploy.install_tools FOLDER`.
VARIABLE = "LLM_DEPLOY_TOOLS"


def tool(name: str) -> str:
    """The path of a program, or the end of the test."""
    folders = [
        Path(sys.executable).parent,
        *(Path(part) for part in os.environ["PATH"].split(os.pathsep)),
        Path("/usr/sbin"),
    ]
    installed = os.environ.get(VARIABLE)
    if installed:
        folders.insert(0, Path(installed) / "bin")
    found = shutil.which(name, path=os.pathsep.join(map(str, folders)))
    if found is None:
        missing(name)
    return found


def node_modules() -> Path:
    """A folder with the schemas of custom resources, or the end of the test."""
    folder = Path(os.environ.get(VARIABLE, ".")) / "node_modules"
    if not (folder / "@kubernetes-models" / "keda").is_dir():
        missing("the npm packages @kubernetes-models/*")
    return folder


def missing(what: str) -> None:
    message = f"{what} is not there; python -m tests.deploy.install_tools FOLDER, then set {VARIABLE}=FOLDER"
    if os.environ.get("CI"):
        pytest.fail(message + "; CI must not skip it", pytrace=False)
    pytest.skip(message)


def run(*command: str, stdin: str = "", cwd: Path | None = None) -> str:
    """Output of a program that must succeed."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False, cwd=cwd)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr
