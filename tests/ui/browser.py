"""The page in a real Chromium: `drive` runs one script of `tests/ui/scripts/` against a server.

A script that fails ends the test with its message. Where the browser, Node or playwright-core is missing the test is
skipped with the reason; with CI set it fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

#: The folder of `python -m tests.ui.install_tools FOLDER`.
VARIABLE = "LLM_UI_TOOLS"
RUNNER = Path(__file__).parent / "scripts" / "run.mjs"
_TIMEOUT_S = 120


async def drive(script: str, url: str, **options: Any) -> Any:
    """Run `scripts/<script>.mjs` on the page at `url`; what it returns, through JSON. `options` are given to it."""
    environment = {**os.environ, "CHROMIUM": _program("chromium", "chromium"), VARIABLE: str(_tools())}
    process = await asyncio.create_subprocess_exec(
        _program("node", "nodejs"),
        str(RUNNER),
        script,
        url,
        json.dumps(options),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, problems = await asyncio.wait_for(process.communicate(), _TIMEOUT_S)
    except asyncio.TimeoutError:
        process.kill()
        out, problems = await process.communicate()
        pytest.fail(f"{script} did not end within {_TIMEOUT_S} s:\n{problems.decode()}", pytrace=False)
    if process.returncode:
        pytest.fail(f"{script}:\n{problems.decode()}", pytrace=False)
    return json.loads(out)


def _tools() -> Path:
    folder = Path(os.environ.get(VARIABLE, "."))
    if not (folder / "node_modules" / "playwright-core").is_dir():
        _missing(f"playwright-core is not there; python -m tests.ui.install_tools FOLDER, then set {VARIABLE}=FOLDER")
    return folder.resolve()


def _program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        _missing(f"{name} is not there; the Debian package {package} has it")
    return found


def _missing(message: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(message + "; CI must not skip it", pytrace=False)
    pytest.skip(message)
