from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from llm_inference.adapters.merging import merged


async def numbers(name: str, count: int, closed: list[str], fail: bool = False) -> AsyncGenerator[str, None]:
    try:
        for place in range(count):
            yield f"{name}{place}"
            await asyncio.sleep(0)
        if fail:
            raise ValueError(name)
    finally:
        closed.append(name)


@pytest.mark.parametrize("names", ["a", "abc"])
async def test_all_items_in_their_own_order(names: str) -> None:
    closed: list[str] = []
    items = [item async for item in merged([numbers(name, 30, closed) for name in names])]
    for name in names:
        assert [item for item in items if item[0] == name] == [f"{name}{place}" for place in range(30)]
    assert sorted(closed) == list(names)


@pytest.mark.parametrize("names", ["a", "ab"])
async def test_the_first_error_ends_all(names: str) -> None:
    closed: list[str] = []
    with pytest.raises(ValueError, match="a"):
        async for _ in merged([numbers(name, 1000 if name == "b" else 2, closed, name == "a") for name in names]):
            pass
    assert sorted(closed) == list(names)


@pytest.mark.parametrize("names", ["a", "ab"])
async def test_closing_closes_every_stream(names: str) -> None:
    closed: list[str] = []
    async with aclosing(merged([numbers(name, 1000, closed) for name in names])) as items:
        seen = [await anext(items) for _ in range(4)]
    assert len(seen) == 4
    assert sorted(closed) == list(names)
