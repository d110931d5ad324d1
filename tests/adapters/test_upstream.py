from __future__ import annotations

import pytest

from llm_inference.adapters.upstream import without_user


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:secret@10.0.0.5:8000/v1", "http://10.0.0.5:8000/v1"),
        ("http://10.0.0.5:8000/a@b", "http://10.0.0.5:8000/a@b"),
        ("http://user@[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_errors_show_no_password(url: str, shown: str) -> None:
    assert without_user(url) == shown
