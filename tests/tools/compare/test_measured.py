from __future__ import annotations

import pytest

from llm_inference.tools.compare.measured import Outcome, measure
from tests.tools.bench.timelines import failed, timeline


def test_rates_and_latencies_of_two_streams() -> None:
    first = timeline((1.0, 1), (2.0, 1), (3.0, 1), max_tokens=3, planned_input_tokens=5)
    second = timeline((2.0, 1), (6.0, 4), max_tokens=5, planned_input_tokens=7)
    result = measure(Outcome(timelines=(first, second), text_tokens=8, limit_s=60))
    assert (result.num_requests, result.output_tokens, result.input_tokens) == (2, 8, 12)
    assert result.output_tokens_per_s == pytest.approx(8 / 6)
    assert result.decode_tokens_per_s == 1.0  # both: a token a second after the first
    assert result.ttft_p50_s == 1.5
    assert result.itl_p50_s == 1.0
    assert result.complete
    assert result.doubts == ()


def test_a_short_answer_is_said_so() -> None:
    result = measure(Outcome(timelines=(timeline((1.0, 1), (2.0, 1), max_tokens=5),), limit_s=60))
    assert (result.num_short, result.output_tokens, result.complete) == (1, 2, False)
    assert "1 of 1 answers are shorter" in result.doubts[0]


def test_what_was_cut_off_counts_with_all_the_time() -> None:
    cut = failed("cut", ended_s=10.0)
    cut = timeline((2.0, 1), (4.0, 3), failure=cut.failure, ended_s=10.0, output_tokens=0)
    result = measure(Outcome(timelines=(timeline((5.0, 2), max_tokens=2), cut), limit_s=10))
    assert (result.num_cut, result.num_failed, result.output_tokens) == (1, 0, 6)
    assert result.output_tokens_per_s == pytest.approx(0.6)


def test_failures_count_as_time_and_not_as_tokens() -> None:
    result = measure(Outcome(timelines=(timeline((1.0, 4), max_tokens=4), failed("http_503", ended_s=2.0)), limit_s=9))
    assert (result.num_failed, result.output_tokens_per_s) == (1, 2.0)
    assert result.doubts == ("1 × http_503: said so",)


def test_nothing_but_failures() -> None:
    result = measure(Outcome(timelines=(failed("connection"),), limit_s=9))
    assert (result.output_tokens_per_s, result.ttft_p50_s, result.decode_tokens_per_s) == (0.0, None, None)


def test_text_that_is_too_little_for_its_tokens() -> None:
    result = measure(Outcome(timelines=(timeline((1.0, 100), max_tokens=100),), text_tokens=50, limit_s=9))
    assert "the answers' text has 50 tokens" in result.doubts[0]


def test_streams_beside_late_prompts_count_in_their_window() -> None:
    stream = timeline((1.0, 1), (2.0, 1), (5.0, 1), (6.0, 2), (20.0, 1))
    late = timeline((7.0, 1), sent_s=4.0)
    result = measure(Outcome(timelines=(stream,), late=(late,), limit_s=60))
    # From 4 to 7: one token after 3 s, two tokens after 1 s together.
    assert (result.output_tokens, result.duration_s) == (3, 3.0)
    assert result.output_tokens_per_s == 1.0
    assert result.itl_p50_s == 0.5
    assert result.itl_p99_s == pytest.approx(0.5 + 0.98 * 2.5)
    assert result.ttft_p50_s == 3.0
    assert result.doubts == ()


def test_streams_that_end_too_early_are_said_so() -> None:
    result = measure(
        Outcome(timelines=(timeline((1.0, 1), (4.5, 1)),), late=(timeline((7.0, 1), sent_s=4.0),), limit_s=9)
    )
    assert "1 of 1 streams ended before" in result.doubts[0]
