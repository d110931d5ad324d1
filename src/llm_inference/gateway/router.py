"""Which engine answers for a model's name. One engine per name for now; replicas and tiers come here.

It knows neither HTTP nor load.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from llm_inference.engine.base import Engine
from llm_inference.errors import InvalidRequestError, ModelNotFoundError


class Router:
    """Names → engines, in the order given. The first is nothing special; with exactly one, clients may leave it out.

    `aliases` are further names for the same engines; answers, metrics and listings say the served name.
    """

    def __init__(self, engines: Mapping[str, Engine], aliases: Mapping[str, str] | None = None) -> None:
        self._engines = dict(engines)
        self._aliases = dict(aliases or {})

    def resolve(self, name: str | None) -> tuple[str, Engine]:
        """The served name and its engine.

        Raises `ModelNotFoundError` for a name that is not served, `InvalidRequestError` for none where several are.
        """
        if name is None:
            if len(self._engines) == 1:
                return next(iter(self._engines.items()))
            raise InvalidRequestError(f"model is required: one of {self._listing()}.", param="model")
        served = self._aliases.get(name, name)
        engine = self._engines.get(served)
        if engine is None:
            near = difflib.get_close_matches(name[:200], [*self._engines, *self._aliases], n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Served here: {self._listing()}."
            raise ModelNotFoundError(f"The model {name[:200]!r} is not served here. {hint}", param="model")
        return served, engine

    def items(self) -> Iterator[tuple[str, Engine]]:
        return iter(self._engines.items())

    def __len__(self) -> int:
        return len(self._engines)

    def _listing(self) -> str:
        return ", ".join(repr(name) for name in self._engines) or "nothing"
