from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from llm_inference.tools.compare.comparison import Run, Spread
from llm_inference.tools.compare.plot import save_plot
from llm_inference.tools.compare.table import render
from tests.tools.compare.results import comparison, entry, measured


def test_medians_and_spread_over_rounds() -> None:
    one = entry("a", 10, 30, 20)
    assert one.main("W2") == Spread(20, 10, 30)
    assert one.main("W1") is None
    assert one.peak_rss_bytes == 10**9


def test_ratios() -> None:
    ours, slow, fast, better = (
        entry("ours", 20, ours=True),
        entry("s", 5),
        entry("f", 10),
        entry("i", 40, precision="int8"),
    )
    result = comparison(ours, slow, fast, better)
    assert result.ratio_to_first(fast, "W2") == 0.5
    assert result.best_peer("fp32", "W2") is fast
    assert result.ratio_to_best_peer(ours, "W2") == 2.0
    assert result.ratio_to_best_peer(fast, "W2") is None


def test_a_more_precise_peer_that_is_faster_is_the_one_to_beat() -> None:
    result = comparison(
        entry("ours", 20, precision="int8", ours=True), entry("a", 40), entry("b", 30, precision="int8")
    )
    peer = result.best_peer("int8", "W2")
    assert peer is not None
    assert peer.name == "a"


def test_less_is_better_in_w4() -> None:
    result = comparison(
        entry("ours", 10, ours=True, workload="W4"), entry("a", 5, workload="W4"), entry("b", 2, workload="W4")
    )
    peer = result.best_peer("fp32", "W4")
    assert peer is not None
    assert peer.name == "a"
    assert result.ratio_to_best_peer(result.entries[0], "W4") == 0.5


def test_what_counts_as_done() -> None:
    assert comparison(entry("a", 1)).ok
    assert not comparison(entry("a")).ok
    assert not comparison(entry("a", 1), interrupted=True).ok
    broken = entry("a", 1)
    broken.runs.append(Run(round=2, error="no memory"))
    assert not comparison(broken).ok
    assert broken.error is None  # it did start once
    short = entry("a")
    short.runs.append(Run(round=1, measured={"W2": measured(3, num_short=1)}))
    assert not comparison(short).ok
    cut = entry("a")
    cut.runs.append(Run(round=1, measured={"W2": measured(3, num_cut=1)}))
    assert comparison(cut).ok


def test_the_table() -> None:
    failed = entry("c")
    failed.runs.append(Run(round=1, error="not installed:\n  run this"))
    cut = entry("b", 10)
    cut.runs.append(Run(round=2, measured={"W2": measured(10, num_cut=3, doubts=("odd",))}, errors={"W1": "broke"}))
    text = render(comparison(entry("a", 20, 30, ours=True), cut, failed))
    lines = text.splitlines()
    assert "Peaks, measured in this run: 25.0 GB/s read, 150 GFLOP/s in float32 products" in lines
    assert "### W2: many" in lines
    rows = [line for line in lines if line.startswith("|")]
    assert len({len(line) for line in rows}) == 1
    assert "25.0 (20.0–30.0)" in rows[2]
    assert "2.50" in rows[2]  # over the best peer
    assert "50%" in rows[2]
    assert rows[3].startswith("| b * ")
    assert "- c: did not start: not installed: run this" in lines
    assert "- b: W1: broke" in lines
    assert "- b: odd" in lines
    assert any("what still ran after 60 s was cut off" in line for line in lines)
    assert "Decode" not in rows[0]


def test_json_has_everything() -> None:
    data = json.loads(comparison(entry("a", 20)).to_json())
    assert data["entries"][0]["runs"][0]["measured"]["W2"]["output_tokens_per_s"] == 20
    assert data["peaks"]["read_bytes_per_s"] == 25e9


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    save_plot(
        comparison(entry("a", 20, 30, ours=True), entry("b", 10, precision="int8", workload="W4")), tmp_path / "x.svg"
    )
    text = "".join(ElementTree.parse(tmp_path / "x.svg").getroot().itertext())
    assert text is not None
    save_plot(comparison(), tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 1000
