from __future__ import annotations

import pytest

from llm_inference.engine.types import Delta, TokenLogprob
from llm_inference.gateway.routing.agreement import Agreement, AgreementRules, Answer, Comparison, compare

RULES = AgreementRules(threshold=0.8, window=4, min_samples=3, restore_after=2)
GOOD, BAD = Comparison(0.9, None), Comparison(0.2, 1)


def answer(tokens: list[int], text: str = "", logprobs: list[float | None] | None = None) -> Answer:
    return Answer([text], tokens, logprobs or [], finished=True)


def test_shares_are_of_the_longer_answer() -> None:
    assert compare(answer([1, 2, 3]), answer([1, 2, 3])) == Comparison(1.0, None)
    assert compare(answer([1, 2, 3, 4]), answer([1, 9, 3, 4])) == Comparison(0.75, 1)
    assert compare(answer([1, 2, 3, 4]), answer([1, 2])) == Comparison(0.5, 2)
    assert compare(answer([1]), answer([2])) == Comparison(0.0, 0)


def test_without_tokens_characters_are_compared() -> None:
    assert compare(answer([], "abcd"), answer([1], "abxd")) == Comparison(0.75, 2)
    assert compare(answer([]), answer([])) == Comparison(1.0, None)


def test_the_gap_is_over_what_both_said() -> None:
    ours = answer([1, 2, 3], logprobs=[-0.5, -1.0, -9.0])
    theirs = answer([1, 2, 4], logprobs=[-0.25, -1.5, -0.1])
    found = compare(ours, theirs)
    assert (found.share, found.first_divergence) == (pytest.approx(2 / 3), 2)
    assert found.logprob_gap == pytest.approx((0.25 + 0.5) / 2)
    assert compare(answer([1], logprobs=[None]), answer([1], logprobs=[-1.0])).logprob_gap is None


def test_an_answer_grows_by_deltas() -> None:
    grown = Answer()
    grown.add(Delta(text="a", token_ids=(1,), logprobs=(TokenLogprob(1, "a", -0.5),)))
    assert not grown.finished
    grown.add(Delta(text="b", token_ids=(2,), finish_reason="length"))
    assert (grown.token_ids, "".join(grown.text), grown.logprobs, grown.finished) == ([1, 2], "ab", [-0.5], True)
    aborted = Answer()
    aborted.add(Delta(finish_reason="abort"))
    assert not aborted.finished


def test_a_mean_under_the_threshold_demotes_once_there_are_enough() -> None:
    known = Agreement(RULES, "golden")
    known.record("int4", BAD)
    known.record("int4", BAD)
    assert not known.demoted("int4")
    known.record("int4", GOOD)
    assert known.demoted("int4")
    assert known.any_demoted
    assert not known.demoted("int8")


def test_the_window_forgets() -> None:
    known = Agreement(RULES, "golden")
    for comparison in (GOOD, GOOD, GOOD, BAD):  # mean 0.725
        known.record("int8", comparison)
    assert known.demoted("int8")
    assert known.restore("int8")
    for _ in range(20):
        known.record("int8", GOOD)
    assert not known.demoted("int8")


def test_good_samples_in_a_row_restore() -> None:
    known = Agreement(RULES, "golden")
    for comparison in (BAD, BAD, BAD, GOOD, BAD, GOOD):
        known.record("int4", comparison)
        assert known.demoted("int4") == (known.report()["int4"].num_samples >= 3)
    known.record("int4", GOOD)
    assert not known.demoted("int4")
    # It is judged anew: what it was demoted for is not held against it.
    known.record("int4", BAD)
    assert not known.demoted("int4")


def test_the_report() -> None:
    known = Agreement(RULES, "golden")
    assert known.report() == {}
    known.record("int8", Comparison(1.0, None, 0.125))
    known.record("int8", Comparison(0.5, 7))
    report = known.report()["int8"]
    assert (report.num_samples, report.share, report.first_divergence, report.logprob_gap) == (2, 0.75, 7.0, 0.125)


def test_what_is_known_of_the_same_engines_goes_on() -> None:
    rules = AgreementRules(sample=1, threshold=0.8, window=4, min_samples=2, restore_after=3, max_queue=1)
    old, new = Agreement(rules, "golden"), Agreement(rules, "golden")
    for _ in range(2):
        old.record("int8", BAD)
        old.record("int4", BAD)
    new.take_over(old, ["golden", "int8"])
    assert new.demoted("int8")
    assert not new.demoted("int4")
    for _ in range(3):
        new.record("int8", GOOD)
    assert not new.demoted("int8")
    assert old.demoted("int8")
