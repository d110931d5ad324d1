from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from llm_inference.errors import ConfigError
from llm_inference.tools.bench.plot import check_plot, save_plot
from tests.tools.bench.test_report import report_of
from tests.tools.bench.timelines import failed, timeline


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'llm-inference\[plot\]'"):
        check_plot(Path("out.png"))


def test_only_two_formats() -> None:
    with pytest.raises(ConfigError, match=r"must end in \.png or \.svg"):
        check_plot(Path("out.jpg"))


@pytest.mark.parametrize("rate", [None, 5.0])
def test_pictures(tmp_path: Path, rate: float | None) -> None:
    pytest.importorskip("matplotlib")
    report = report_of(timeline((1.0, 1), (2.0, 2), sent_s=0.5, scheduled_s=0.2), failed("timeout"), request_rate=rate)
    png, svg = tmp_path / "a.png", tmp_path / "a.svg"
    for path in (png, svg):
        check_plot(path)
        save_plot(report, path)
    assert png.read_bytes().startswith(b"\x89PNG\r\n")
    assert ElementTree.parse(svg).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_a_picture_of_nothing(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    save_plot(report_of(failed("connection")), tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
