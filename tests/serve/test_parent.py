"""What the parent asks of the system."""

from __future__ import annotations

import resource

import pytest

from llm_inference.serve.parent import _allow_many_connections


@pytest.mark.parametrize(("limits", "wanted"), [((1024, 65_536), [(65_536, 65_536)]), ((4096, 4096), [])])
def test_as_many_open_files_as_there_may_be(
    limits: tuple[int, int], wanted: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: asked.append(pair))
    _allow_many_connections()
    assert asked == wanted


def test_a_system_that_refuses_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(which: int, pair: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, -1))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    _allow_many_connections()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (256, -1), "left as it was"
