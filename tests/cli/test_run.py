from __future__ import annotations

import io
from pathlib import Path

import pytest

from llm_inference.cli.terminal import Printer
from llm_inference.engine.types import Delta, SamplingParams
from tests.cli.conftest import Invoke
from tests.cli.fakes import FakeServe


def test_only_the_models_text_is_on_stdout(serve: FakeServe, invoke: Invoke) -> None:
    code, out, err = invoke("run", "hello")
    assert (code, out) == (0, "user:hello\n")
    assert err == "thinking\n"
    assert serve.closed == 1
    assert serve.models[0].name == "SmolLM2-135M-Instruct"


def test_flags_reach_the_request(serve: FakeServe, invoke: Invoke) -> None:
    invoke("run", "hello", "--model", "m", "--system", "brief", "--max-tokens", "5", "--temperature", "0",
           "--top-p", "0.5", "--seed", "7", "--precision", "int8")  # fmt: skip
    (request,) = serve.engine.requests
    assert request.model == "m"
    assert request.sampling == SamplingParams(max_tokens=5, temperature=0.0, top_p=0.5, seed=7)
    assert serve.models[0].precision == "int8"


def test_raw_is_text_and_stdin_is_a_prompt(serve: FakeServe, invoke: Invoke) -> None:
    assert invoke("run", "--raw", "-", stdin="def f(n):\n")[1] == "def f(n):\n"
    assert serve.engine.requests[0].prompt == "def f(n):\n"


def test_an_error_is_one_line(serve: FakeServe, invoke: Invoke) -> None:
    code, out, err = invoke("run", "overlong")
    assert (code, out) == (1, "")
    assert err == "error: the prompt has 99 tokens, the model takes 64\n"
    assert serve.closed == 1
    assert invoke("run", "--raw", "--system", "s", "hello")[0] == 2


@pytest.fixture
def two(tmp_path: Path) -> str:
    file = tmp_path / "two.yaml"
    file.write_text("models:\n- {model: org/a, name: a, aliases: [first]}\n- {model: org/b}\n")
    return str(file)


def test_one_of_several_models_is_chosen_by_name(serve: FakeServe, invoke: Invoke, two: str) -> None:
    for name in ("first", "a", "org/b"):
        assert invoke("run", "x", "--config", two, "--model", name)[0] == 0
    assert [model.model for model in serve.models] == ["org/a", "org/a", "org/b"]


def test_several_models_and_no_choice_is_an_error(serve: FakeServe, invoke: Invoke, two: str) -> None:
    code, _, err = invoke("run", "x", "--config", two)
    assert (code, err) == (2, f"error: {two} has several models; say which: a, first, org/b\n")
    code, _, err = invoke("run", "x", "--config", two, "--model", "a", "--precision", "int8")
    assert (code, err) == (2, f"error: --precision: {two} has several models; set it in the file\n")
    assert serve.models == []


def test_a_single_models_name_or_another_model(serve: FakeServe, invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("model: org/a\nname: a\n")
    invoke("run", "x", "--config", str(file), "--model", "a", "--precision", "int8")
    invoke("run", "x", "--config", str(file), "--model", "org/other")
    assert [(model.model, model.precision) for model in serve.models] == [("org/a", "int8"), ("org/other", "auto")]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_obeys_the_user_alone() -> None:
    """Not what a model says: it could write to the clipboard, or over what stands above."""
    said = Delta(text="a\x1b]52;c;cm0=\x07b\x9b2J\tü\r\n👩‍👧", reasoning="\x1b[2J")
    out, notes, file = _Terminal(), _Terminal(), io.StringIO()
    Printer(out, notes).show(said)
    assert out.getvalue() == "a\\x1b]52;c;cm0=\\x07b\\x9b2J\tü\n👩‍👧"
    assert notes.getvalue() == "\\x1b[2J\n"
    Printer(file, notes).show(said)
    assert file.getvalue() == said.text, "a file gets what was said"
