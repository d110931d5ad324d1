from __future__ import annotations

import json

import pytest

from llm_inference import errors
from llm_inference.gateway.failure import body_of, http_response, response_of


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (errors.InvalidRequestError("x", param="n"), 400, "invalid_request_error", None),
        (errors.ContextLengthError("x"), 400, "invalid_request_error", "context_length_exceeded"),
        (errors.AuthenticationError("x"), 401, "authentication_error", "invalid_api_key"),
        (errors.ModelNotFoundError("x"), 404, "invalid_request_error", "model_not_found"),
        (errors.PayloadTooLargeError("x"), 413, "invalid_request_error", "payload_too_large"),
        (errors.RateLimitError("x", retry_after_s=0.2), 429, "rate_limit_error", "rate_limit_exceeded"),
        (errors.OverloadedError("x", retry_after_s=3.1), 503, "overloaded_error", "overloaded"),
        (errors.RequestTimeoutError("x"), 504, "timeout_error", "request_timeout"),
        (errors.EngineError("x"), 500, "server_error", "server_error"),
    ],
)
def test_errors_of_the_tree(error: errors.LLMInferenceError, status: int, kind: str, code: str | None) -> None:
    response = response_of(error)
    assert response.status_code == status
    assert response.media_type == "application/json"
    assert json.loads(bytes(response.body)) == {
        "error": {"message": "x", "type": kind, "param": error.param, "code": code}
    }
    expected = {0.2: "1", 3.1: "4"}.get(error.retry_after_s or 0)
    assert response.headers.get("retry-after") == expected


def test_foreign_exceptions_keep_their_text() -> None:
    response = response_of(ValueError("/secret/path"))
    assert response.status_code == 500
    assert b"secret" not in bytes(response.body)
    assert body_of(ValueError("x")).code == "server_error"


@pytest.mark.parametrize(("status", "code"), [(404, "not_found"), (405, "method_not_allowed"), (415, None)])
def test_refusals_of_the_framework(status: int, code: str | None) -> None:
    response = http_response(status, "GET", "/x" * 1000, {"Allow": "POST"})
    error = json.loads(bytes(response.body))["error"]
    assert response.status_code == status
    assert error["code"] == (code or "unsupported_media_type")
    assert len(error["message"]) < 400
