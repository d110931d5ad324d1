"""What is asked of all desks at once, whatever becomes of some of them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from llm_inference.errors import StartupError
from llm_inference.serve.desks import DeskLike, Desks
from llm_inference.serve.peer import PeerGoneError


class Desk:
    """Answers with its name, or fails with what it is given."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name = name
        self.error = error
        self.num_asked = 0

    async def retire(self) -> str:
        self.num_asked += 1
        if self.error is not None:
            raise self.error
        return self.name


def desks_of(*desks: Desk) -> Desks:
    found = Desks()
    for desk in desks:
        found.add(cast(DeskLike, desk))
    return found


async def retired(desks: Desks) -> list[Any]:
    return cast("list[Any]", await desks.each(lambda desk: desk.retire()))


async def test_every_desk_is_asked() -> None:
    desks = desks_of(Desk("a"), Desk("b"))
    assert len(desks) == 2
    assert await retired(desks) == ["a", "b"]


async def test_who_has_gone_is_left_out() -> None:
    assert await retired(desks_of(Desk("a", PeerGoneError("gone")), Desk("b"))) == ["b"]


async def test_a_failure_is_raised_when_all_have_been_asked() -> None:
    failing, last = Desk("a", StartupError("no port")), Desk("b")
    with pytest.raises(StartupError, match="no port"):
        await retired(desks_of(failing, last))
    assert last.num_asked == 1


async def test_a_desk_may_leave_more_than_once() -> None:
    first, second = Desk("a"), Desk("b")
    desks = desks_of(first, second)
    desks.remove(cast(DeskLike, first))
    desks.remove(cast(DeskLike, first))
    assert await retired(desks) == ["b"]
