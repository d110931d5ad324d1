from __future__ import annotations

import math

import numpy as np
import pytest

from llm_inference.errors import ConfigError
from llm_inference.tools.bench.lengths import Lengths


@pytest.mark.parametrize("text", ["256", "16:512", "lognormal:300:120", "lognormal:300:120:2000"])
def test_a_length_is_written_as_it_is_read(text: str) -> None:
    assert str(Lengths.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("many", "is no length"),
        ("1:2:3", "is no length"),
        ("1.5", "is no length"),
        ("lognormal:5", "is no length"),
        ("lognormal:5:1:9:9", "is no length"),
        ("0", "at least one token"),
        ("-3:4", "at least one token"),
        ("9:3", "below the lower"),
        ("lognormal:10:-1", "not negative"),
        ("lognormal:10:nan", "finite"),
        ("lognormal:10:1:0", "at least one token"),
    ],
)
def test_what_is_no_length_is_an_error_that_names_the_option(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Lengths.parse(text, "--input-len")
    assert caught.value.message.startswith(f"--input-len: {text!r}")
    assert "LOW:HIGH" in caught.value.message


def test_fixed_and_uniform() -> None:
    assert Lengths.fixed(7).draw(3, 0, 0) == [7, 7, 7]
    drawn = Lengths.parse("3:6").draw(4000, 0, 0)
    assert set(drawn) == {3, 4, 5, 6}
    for value in (3, 4, 5, 6):  # 1000 expected, standard deviation 27
        assert abs(drawn.count(value) - 1000) < 5 * 27


def test_lognormal_has_the_mean_and_deviation_that_were_asked_for() -> None:
    mean, std, count = 300.0, 120.0, 20_000
    drawn = np.array(Lengths.parse("lognormal:300:120").draw(count, 1, 0))
    assert abs(drawn.mean() - mean) < 5 * std / math.sqrt(count)
    assert abs(drawn.std() / std - 1) < 0.05
    # The median of a lognormal is mean / sqrt(1 + (std / mean)²).
    assert abs(np.median(drawn) - mean / math.sqrt(1 + (std / mean) ** 2)) < 5


def test_lognormal_is_cut_and_never_empty() -> None:
    drawn = Lengths.parse("lognormal:3:9:20").draw(5000, 0, 0)
    assert (min(drawn), max(drawn)) == (1, 20)
    assert set(Lengths.parse("lognormal:50:0").draw(10, 0, 0)) == {50}


def test_a_seed_decides_and_streams_differ() -> None:
    lengths = Lengths.parse("1:1000000")
    assert lengths.draw(20, 5, 0) == lengths.draw(20, 5, 0)
    assert lengths.draw(20, 5, 0) != lengths.draw(20, 6, 0)
    assert lengths.draw(20, 5, 0) != lengths.draw(20, 5, 1)
