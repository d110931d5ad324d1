from __future__ import annotations

from typing import Any

import pytest

from llm_inference.errors import InvalidRequestError
from llm_inference.gateway.admission.deadline import HEADER, deadline_of


def scope(value: str | None) -> dict[str, Any]:
    return {"headers": [] if value is None else [(b"host", b"x"), (HEADER.encode(), value.encode("latin-1"))]}


@pytest.mark.parametrize(
    ("value", "limit_s", "expected"),
    [
        (None, None, None),
        (None, 600.0, 700.0),
        ("2.5", None, 102.5),
        ("2.5", 600.0, 102.5),
        ("1e9", 600.0, 700.0),
        ("1e9", None, 100.0 + 86_400.0),
    ],
)
def test_the_nearer_one_counts(value: str | None, limit_s: float | None, expected: float | None) -> None:
    deadline, whose = deadline_of(scope(value), 100.0, limit_s)
    assert deadline == expected
    if expected is not None:
        assert whose == ("api.request_timeout_s" if expected == 700.0 else HEADER)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", "1s", " ", "\u00b2"])
def test_what_is_no_time(value: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        deadline_of(scope(value), 0.0, None)
    assert caught.value.param == HEADER
