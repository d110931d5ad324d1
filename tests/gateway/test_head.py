from __future__ import annotations

from llm_inference.gateway.head import header


def test_the_first_one_counts_and_none_is_empty() -> None:
    scope = {"headers": [(b"a", b"1"), (b"x-name", b"caf\xe9"), (b"x-name", b"other")]}
    assert header(scope, b"x-name") == "caf\u00e9"
    assert header(scope, b"X-Name") == ""
    assert header({"headers": []}, b"a") == ""
