"""What hostile and broken servers say when they refuse: always one error of ours, never a failure of the reading."""

from __future__ import annotations

import json

import pytest

from llm_inference.adapters.upstream_errors import from_event, from_response, retry_after
from llm_inference.errors import InvalidRequestError, LLMInferenceError, ServiceError


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 100_000, b"\xff\xfe", b"null", b"[[[1]]]", b'{"error": [[]]}',
        b'{"detail": [{"loc": 5, "msg": "x"}]}', b'{"detail": [{"loc": [{"a": 1}], "msg": {"a": 1}}]}',
        b'{"error": {"message": ["x"], "code": {"a": 1}, "param": ["x"], "type": 5}}',
        '{"error": {"message": "x", "code": "²"}}'.encode(),
        b'{"error": {"message": "x", "code": "' + b"9" * 5000 + b'"}}',
    ],
    ids=lambda raw: repr(raw[:40]),
)  # fmt: skip
def test_a_body_of_any_form_is_one_error(raw: bytes) -> None:
    assert type(from_response(400, {}, raw, where="w")) is InvalidRequestError
    assert isinstance(from_response(307, {}, raw, where="w"), ServiceError)
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        return
    assert isinstance(from_event(body, where="w"), LLMInferenceError)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None), ("", None), ("soon", None), ("nan", None), ("inf", None), ("-5", 0.0), ("2.5", 2.5),
        ("1e308", 86_400.0), ("Mon, 01 Jan 9999 00:00:00 GMT", 86_400.0), ("Mon, 01 Jan 0001 00:00:00 GMT", 0.0),
        ("Mon, 01 Jan 99999 00:00:00 GMT", None), ("9" * 5000, None),
    ],
)  # fmt: skip
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert retry_after(value) == seconds
