from __future__ import annotations

import io
import logging
import sys
import types
from collections.abc import Callable, Iterator

import pytest

from llm_inference.cli.main import main
from tests.cli.fakes import FakeServe

#: Runs a command line with this stdin; (exit code, stdout, stderr).
Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> FakeServe:
    """`llm_inference.serve`, replaced by a fake for as long as the test runs."""
    import llm_inference

    fake = FakeServe()
    module = types.ModuleType("llm_inference.serve")
    module.open_engine = fake.open_engine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "llm_inference.serve", module)
    monkeypatch.setattr(llm_inference, "serve", module, raising=False)
    return fake


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Invoke]:
    root = logging.getLogger()
    ours = (logging.getLogger("llm_inference"), logging.getLogger("uvicorn"))
    handlers, level, levels = root.handlers[:], root.level, [one.level for one in ours]

    def run(*argv: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = main(argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    yield run
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    for logger, old in zip(ours, levels, strict=True):
        logger.setLevel(old)
