"""Which Python is found, and that it has the library."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from llm_inference.adapters.library.interpreter import Library
from llm_inference.errors import ConfigError

PYTEST = Library("checker", "pytest", "pytest")
NONE = Library("nothing", "no_such_module", "no-such-distribution")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLM_INFERENCE_CACHE", str(tmp_path))
    return tmp_path


def test_the_venv_goes_first(cache: Path) -> None:
    assert PYTEST.python(None) == Path(sys.executable)
    python = cache / "engines" / "checker" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert PYTEST.python(None) == python
    assert PYTEST.python(sys.executable) == Path(sys.executable), "what the configuration says goes before"


def test_nowhere() -> None:
    with pytest.raises(ConfigError, match="engines install nothing"):
        NONE.python(None)
    with pytest.raises(ConfigError, match=r"engine_args\.program"):
        NONE.python("/no/such/python")


def test_versions() -> None:
    assert PYTEST.version(Path(sys.executable)) == version("pytest")
    with pytest.raises(ConfigError, match="no-such-distribution"):
        NONE.version(Path(sys.executable))
    with pytest.raises(ConfigError, match="cannot be run"):
        NONE.version(Path("/no/such/python"))
