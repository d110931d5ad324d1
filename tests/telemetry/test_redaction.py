from __future__ import annotations

import time
from typing import Any

import pytest

from llm_inference.telemetry.redaction import MAX_CHARS, MAX_ITEMS, redact


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


def test_a_huge_prompt_is_cut_between_words() -> None:
    text = "lorem " * (MAX_CHARS // 6 - 1) + "sk-" + "a1" * 500_000
    shown = redact(text)
    assert shown.startswith("lorem lorem")
    assert shown.endswith(f"lorem [{1_000_004} characters]"), shown[-50:]
    assert redact("lorem " * (MAX_CHARS // 6 - 2) + "4111 1111 1111 1111 " * 9).endswith(f"lorem [{181} characters]")
    assert redact("x" * (MAX_CHARS + 1)) == f"[{MAX_CHARS + 1} characters]"
    exact = "y " * (MAX_CHARS // 2)
    assert redact(exact) == exact


def test_the_room_is_shared_by_all_texts_of_a_prompt() -> None:
    half = "word " * (MAX_CHARS // 10)
    first, second, third, number = redact([half, {"content": half}, half, 7])
    assert first == half
    assert second == {"content": half}
    assert third.endswith("characters]")
    assert len(third) < 100
    assert number == 7


def test_long_lists_are_cut() -> None:
    shown = redact(tuple(range(1_000_000)))
    assert shown[:MAX_ITEMS] == list(range(MAX_ITEMS))
    assert shown[MAX_ITEMS:] == [f"[{1_000_000 - MAX_ITEMS} more]"]


def test_lists_in_lists_are_cut_together() -> None:
    shown = redact([[{} for _ in range(MAX_ITEMS // 2)] for _ in range(4)])
    assert [len(inner) for inner in shown] == [MAX_ITEMS // 2, MAX_ITEMS // 2 - 3, 1, 1]
    assert shown[1][-1] == "[4 more]"
    assert shown[3] == [f"[{MAX_ITEMS // 2} more]"]


@pytest.mark.parametrize("text", ["1 " * 50_000, "a@" * 50_000, "a." * 50_000, "A1 " * 50_000, "password " * 20_000])
def test_hostile_text_takes_no_long_time(text: str) -> None:
    begun = time.process_time()
    redact(text)
    assert time.process_time() - begun < 5  # a quadratic shape would take minutes
