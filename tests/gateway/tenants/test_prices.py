from __future__ import annotations

from llm_inference.gateway.tenants.prices import FREE, Price


def test_a_million_of_each() -> None:
    assert Price(0.5, 1.5).of(1_000_000, 1_000_000) == 2.0
    assert Price(0.5, 1.5).of(1_000_000, 0, 400_000) == 0.5
    assert Price(0.5, 1.5, 0.1).of(1_000_000, 0, 400_000) == 0.34
    assert Price(0.15, 0.6).nanos(1, 1) == 750
    assert FREE.nanos(10**9, 10**9) == 0


def test_nothing_is_refunded_for_more_cached_tokens_than_there_are() -> None:
    price = Price(input=1.0, cached=0.1)
    assert price.nanos(10, 0, 1000) == price.nanos(10, 0, 10) > 0
