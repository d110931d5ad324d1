"""The command lines `bench compare`, `bench engine` and `bench kernels`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke


def test_two_fakes(tmp_path: Path, invoke: Invoke) -> None:
    pytest.importorskip("matplotlib")
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(f"engine: fake\nmodel: fake-{name}\n")
    out, plot = tmp_path / "out.json", tmp_path / "out.svg"
    flags = ["--peers", str(tmp_path), "--quick", "--rounds", "1", "--workloads", "W2,W3"]
    code, text, notes = invoke("bench", "compare", "a", "b", *flags, "--out", str(out), "--plot", str(plot))
    assert code == 0, notes
    assert "### W2" in text
    assert "### W3" in text
    assert "round 1 of 1: b: starting" in notes
    assert [entry["name"] for entry in json.loads(out.read_text())["entries"]] == ["a", "b"]
    assert "<svg" in plot.read_text()


def test_one_that_fails_is_exit_code_1(tmp_path: Path, invoke: Invoke) -> None:
    (tmp_path / "a.yaml").write_text("model: ./nothing\nengine: native\n")
    code, text, _ = invoke("bench", "compare", "url=http://127.0.0.1:1,model=m", "--quick", "--rounds", "1")
    assert code == 1
    assert "did not start" in text


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("compare", "nobody"), "neither a file"),
        (("compare", "--precision", "fp31"), "--precision"),
        (("compare", "url=http://h", "--workloads", "W1,W9"), "'W9' is none"),
        (("compare", "url=http://h", "--rounds", "0"), "--rounds"),
        (("compare", "url=http://h", "--out", "absent/x.json"), "does not exist"),
        (("compare", "url=http://h", "--plot", "x.gif"), "must end in"),
        (("engine", "absent.yaml"), "cannot be read"),
        (("kernels", "--rows", "1,x"), "--rows"),
        (("kernels", "--rows", "0"), "below 1"),
        (("kernels", "--out", "absent/x.json"), "does not exist"),
    ],
)
def test_a_wrong_start_is_exit_code_2(argv: tuple[str, ...], words: str, invoke: Invoke) -> None:
    code, text, notes = invoke("bench", *argv)
    assert (code, text) == (2, "")
    assert notes.startswith("error: ")
    assert words in notes


def test_kernels(tmp_path: Path, invoke: Invoke) -> None:
    out = tmp_path / "kernels.json"
    code, text, _ = invoke("bench", "kernels", "--quick", "--rows", "2", "--out", str(out))
    assert code == 0
    assert "RMS norm" in text
    assert json.loads(out.read_text())
