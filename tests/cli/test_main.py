from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from llm_inference.cli import main as cli
from llm_inference.errors import ConfigError, EngineError, OutOfMemoryError
from llm_inference.version import __version__
from tests.cli.conftest import Invoke


def test_help_is_instant_and_imports_nothing_heavy() -> None:
    program = (
        "import sys\nfrom llm_inference.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'pydantic', 'torch', 'fastapi', 'aiohttp', 'numpy', 'yaml', 'msgspec', 'asyncio', 'uvicorn'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "HEAVY []" in done.stdout
    for command in cli.COMMANDS:
        assert command in done.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    assert end.value.code == 0
    assert f"usage: llm-inference {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("f.yaml:1: wrong"), 2, "error: f.yaml:1: wrong\n"),
        (OutOfMemoryError("too large"), 2, "error: too large\n"),
        (EngineError("died"), 1, "error: died\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_become_one_line_and_a_code(
    error: BaseException, code: int, message: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(args: object) -> int:
        raise error

    monkeypatch.setattr("llm_inference.cli.version.run", fail)
    assert invoke("version") == (code, "", message)


def test_version(invoke: Invoke, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke("version") == (0, f"llm-inference {__version__}\n", "")
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"llm-inference {__version__}\n"


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([])
    assert end.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_a_closed_pipe_is_no_traceback(repository: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "llm_inference.cli.main", "config", "--schema"],
            stdout=closed, stderr=subprocess.PIPE, text=True, check=False, cwd=repository,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (141, "")


def test_the_script_is_the_same_door(repository: Path) -> None:
    script = subprocess.run(
        [sys.executable, str(repository / "scripts" / "serve.py"), "--config", "absent.yaml"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert script.returncode == 2
    assert script.stderr == "error: there is no config file absent.yaml\n"
    assert script.stdout == ""
