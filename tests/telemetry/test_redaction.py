from __future__ import annotations

import time
from typing import Any

import pytest

from llm_inference.telemetry.redaction import redact


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("write to ada.l+x@mail.example.org, please", "write to [mail], please"),
        ("my card is 4111 1111 1111 1111.", "my card is [number]."),
        ("call +49 (30) 1234-5678 now", "call [number] now"),
        ("key sk-abcdefghijklmnop1234 and ghp_abcdefghijklmnop1234", "key [secret] and [secret]"),
        ("Authorization: Bearer abc.def-123456", "Authorization: Bearer [secret]"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "[token]"),
        ("IBAN DE89 3704 0044 0532 0130 00", "IBAN [iban]"),
        ("password: hunter2 and more", "password:[secret] and more"),
        ("see data:image/png;base64,iVBORw0KGgo=", "see [data]"),
        (
            "In 2024 it was 12,345.67 at 10:30; pi is 3.14159.",
            "In 2024 it was 12,345.67 at 10:30; pi is 3.14159.",
        ),
        ("", ""),
    ],
)
def test_shapes(text: str, expected: str) -> None:
    assert redact(text) == expected


def test_messages_keep_their_form() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a@b.example"}], "n": 123456789012}]
    assert redact(messages) == [{"role": "user", "content": [{"type": "text", "text": "[mail]"}], "n": 123456789012}]
    assert redact((1, 2, 3)) == [1, 2, 3]
    assert messages[0]["content"] == [{"type": "text", "text": "a@b.example"}]


def test_depth_is_bounded() -> None:
    deep: Any = "x"
    for _ in range(1000):
        deep = [deep]
    assert "[deep]" in str(redact(deep))


@pytest.mark.parametrize("text", ["1 " * 50_000, "a@" * 50_000, "a." * 50_000, "A1 " * 50_000, "password " * 20_000])
def test_hostile_text_takes_no_long_time(text: str) -> None:
    begun = time.process_time()
    redact(text)
    assert time.process_time() - begun < 5  # a quadratic shape would take minutes
