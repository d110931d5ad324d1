"""`examples/locustfile.py` against recorded streams, with as much of locust as it touches."""

from __future__ import annotations

import runpy
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

STREAM = (
    b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": null}]}',
    b"",
    b'data: {"choices": [{"delta": {"content": "Hi"}, "finish_reason": null}]}',
    b"",
    b'data: {"choices": [{"delta": {}, "finish_reason": "length"}]}',
    b"",
    b"data: [DONE]",
    b"",
)


class Response:
    """What `catch_response=True` yields."""

    def __init__(self, lines: tuple[bytes, ...], status: int) -> None:
        self.lines, self.status_code, self.text = lines, status, "said no"
        self.outcome: str | None = None

    def __enter__(self) -> Response:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def iter_lines(self) -> Iterator[bytes]:
        yield from self.lines

    def success(self) -> None:
        self.outcome = "success"

    def failure(self, reason: str) -> None:
        self.outcome = reason


Chat = Callable[..., tuple[Response, dict[str, Any], list[dict[str, Any]]]]


@pytest.fixture
def chat(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Chat:
    """One task of one user; (response, body that was sent, events that were fired)."""
    locust = types.ModuleType("locust")
    locust.HttpUser = object  # type: ignore[attr-defined]
    locust.constant = lambda seconds: seconds  # type: ignore[attr-defined]
    locust.task = lambda function: function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "locust", locust)
    user_class = runpy.run_path(str(repository / "examples" / "locustfile.py"))["ChatUser"]

    def run(lines: tuple[bytes, ...], status: int = 200) -> tuple[Response, dict[str, Any], list[dict[str, Any]]]:
        response, events, bodies = Response(lines, status), [], []

        def post(path: str, **fields: Any) -> Response:
            assert path == "/v1/chat/completions"
            assert fields["stream"] is True
            bodies.append(fields["json"])
            return response

        def get(path: str) -> Any:
            assert path == "/v1/models"
            return types.SimpleNamespace(json=lambda: {"data": [{"id": "first"}]})

        user = user_class()
        user.client = types.SimpleNamespace(post=post, get=get)
        fire = types.SimpleNamespace(fire=lambda **event: events.append(event))
        user.environment = types.SimpleNamespace(events=types.SimpleNamespace(request=fire))
        user.on_start()
        user.chat()
        return response, bodies[0], events

    return run


def test_a_stream_fires_first_token_and_end(chat: Chat) -> None:
    response, body, events = chat(STREAM)
    assert response.outcome == "success"
    assert (body["model"], body["stream"], body["max_tokens"]) == ("first", True, 64)
    assert len(body["messages"][0]["content"].split()) == 50
    assert [event["request_type"] for event in events] == ["ttft", "e2e"]
    assert 0 <= events[0]["response_time"] <= events[1]["response_time"]


@pytest.mark.parametrize(
    ("lines", "status", "outcome"),
    [
        ((), 503, "503: said no"),
        ((), 200, "without a token"),
        (STREAM[:4], 200, "cut off"),
        ((*STREAM[:4], b'data: {"error": {"message": "it died"}}'), 200, "it died"),
    ],
)
def test_what_is_no_answer_is_a_failure(chat: Chat, lines: tuple[bytes, ...], status: int, outcome: str) -> None:
    response, _, events = chat(lines, status)
    assert response.outcome is not None
    assert outcome in response.outcome
    assert events == []
