"""The memory that loaded models may take together: who has how much, and waiting until there is room for one more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from llm_inference.errors import NotReadyError

_POLL_S = 0.1


class MemoryBudget:
    """`total` bytes; None: there is always room. Whoever comes first gets room first, a smaller one does not pass."""

    def __init__(self, total: int | None, max_wait_s: float) -> None:
        self._total = total
        self._max_wait_s = max_wait_s
        self._taken: dict[str, int] = {}
        self._turn = asyncio.Lock()

    @property
    def taken(self) -> int:
        return sum(self._taken.values())

    async def claim(self, key: str, amount: int, make_room: Callable[[], Awaitable[bool]]) -> None:
        """Have `amount`, room or not, after making what can be made: what is always loaded was checked before."""
        while self._lacks(amount) and await make_room():
            pass
        self._taken[key] = amount

    def correct(self, key: str, amount: int) -> None:
        """If `key` has some, that is how much."""
        if key in self._taken:
            self._taken[key] = amount

    async def take(self, key: str, amount: int, make_room: Callable[[], Awaitable[bool]]) -> None:
        """Have `amount`; nothing more if `key` has it already. `make_room` frees some, False: it cannot now.

        Raises `NotReadyError` where there was no room for `max_wait_s`.
        """
        if key in self._taken:
            return
        async with self._turn:
            deadline = asyncio.get_running_loop().time() + self._max_wait_s
            while self._lacks(amount):
                if await make_room():
                    continue
                if asyncio.get_running_loop().time() >= deadline:
                    raise NotReadyError(
                        f"There is no memory for it (loading.memory_budget): {self.taken} of {self._total} bytes are "
                        f"taken by models that are in use, and it needs {amount}.",
                        code="memory_budget",
                        retry_after_s=5.0,
                    )
                await asyncio.sleep(_POLL_S)
            self._taken[key] = amount

    def give_back(self, key: str) -> None:
        self._taken.pop(key, None)

    def _lacks(self, amount: int) -> bool:
        return self._total is not None and self.taken + amount > self._total
