from __future__ import annotations

import pytest

from llm_inference.errors import ConfigError
from llm_inference.tools.bench.slo import Slo


def test_bounds_are_read_in_milliseconds() -> None:
    slo = Slo.parse(["ttft:500", "tpot:12.5"])
    assert slo.bounds_s == {"ttft": 0.5, "tpot": 0.0125}
    assert str(slo) == "ttft:500 tpot:12.5"


def test_all_bounds_must_hold_and_an_exact_hit_holds() -> None:
    slo = Slo.parse(["ttft:500", "e2el:1000"])
    assert slo.met_by({"ttft": 0.5, "tpot": 9.0, "e2el": 1.0})
    assert not slo.met_by({"ttft": 0.5001, "tpot": 0.0, "e2el": 1.0})
    assert not slo.met_by({"ttft": 0.1, "tpot": 0.0, "e2el": 1.01})


def test_what_does_not_exist_breaks_nothing() -> None:
    assert Slo.parse(["tpot:1"]).met_by({"ttft": 1.0, "tpot": None, "e2el": 1.0})


@pytest.mark.parametrize("term", ["ttft", "ttft:", "ttft:0", "ttft:-1", "ttft:inf", "ttft:nan", "itl:5", "ttft=5"])
def test_what_is_no_bound_is_refused(term: str) -> None:
    with pytest.raises(ConfigError, match="ttft:500"):
        Slo.parse([term])


def test_a_metric_is_bounded_once() -> None:
    with pytest.raises(ConfigError, match="twice"):
        Slo.parse(["ttft:5", "ttft:6"])
