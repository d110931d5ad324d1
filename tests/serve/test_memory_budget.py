from __future__ import annotations

import asyncio

import pytest

from llm_inference.errors import NotReadyError
from llm_inference.serve import memory_budget
from llm_inference.serve.memory_budget import MemoryBudget


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "_POLL_S", 0.005)


async def never() -> bool:
    return False


async def test_without_a_total_there_is_always_room() -> None:
    budget = MemoryBudget(None, 0.01)
    await budget.take("a", 10**15, never)
    assert budget.taken == 10**15


async def test_room_is_made_as_long_as_it_can_be() -> None:
    budget = MemoryBudget(10, 5.0)
    for key in ("a", "b"):
        await budget.take(key, 4, never)
    left = ["a", "b"]

    async def make_room() -> bool:
        budget.give_back(left.pop(0))
        return True

    await budget.take("c", 10, make_room)
    assert (budget.taken, left) == (10, [])
    await budget.take("c", 10, never)  # it has it
    budget.give_back("c")
    budget.give_back("c")
    assert budget.taken == 0


async def test_what_must_be_there_is_there_after_what_can_go_has_gone() -> None:
    budget = MemoryBudget(10, 5.0)
    await budget.take("idle", 6, never)
    await budget.take("busy", 4, never)

    async def make_room() -> bool:
        if "idle" not in left:
            return False
        budget.give_back(left.pop())
        return True

    left = ["idle"]
    await budget.claim("always", 6, make_room)
    assert (budget.taken, left) == (10, [])
    await budget.claim("more", 6, make_room)
    assert budget.taken == 16
    budget.correct("more", 1)
    budget.correct("nobody", 5)
    assert budget.taken == 11


async def test_the_wait_is_bounded_and_says_why() -> None:
    budget = MemoryBudget(10, 0.03)
    await budget.claim("always", 8, never)
    with pytest.raises(NotReadyError, match="8 of 10 bytes are taken") as refused:
        await budget.take("a", 4, never)
    assert (refused.value.public_code, refused.value.retry_after_s) == ("memory_budget", 5.0)
    assert budget.taken == 8


async def test_who_waits_goes_on_when_some_is_given_back_in_the_order_of_coming() -> None:
    budget = MemoryBudget(10, 5.0)
    await budget.take("a", 8, never)
    order: list[str] = []

    async def take(key: str, amount: int) -> None:
        await budget.take(key, amount, never)
        order.append(key)

    large, small = asyncio.create_task(take("large", 9)), asyncio.create_task(take("small", 1))
    await asyncio.sleep(0.02)
    assert order == [], "the small one does not pass"
    budget.give_back("a")
    await asyncio.gather(large, small)
    assert order == ["large", "small"]
