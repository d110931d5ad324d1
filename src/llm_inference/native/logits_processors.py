"""Decoding rules that other packages bring: a request names them, the sampler calls them.

    [project.entry-points."llm_inference.logits_processors"]
    no_repeat_ngram = "my_package.no_repeat_ngram:NoRepeatNgram"

The entry point's value is called with the request's `args` as keyword arguments, once for each choice, and makes a
`LogitsProcessor`; a `TypeError` or `ValueError` from it is the client's fault and becomes a 400. Names are known
without importing anything; torch is the processors' own business.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Final, Protocol

from llm_inference.engine.types import LogitsProcessorCall
from llm_inference.errors import EngineError, InvalidRequestError
from llm_inference.native.request import Sequence

if TYPE_CHECKING:
    import torch

GROUP: Final = "llm_inference.logits_processors"


class LogitsProcessor(Protocol):
    """The rule of one choice of one request."""

    def __call__(self, token_ids: Rows[int], num_prompt_tokens: int, logits: torch.Tensor) -> None:
        """Change `logits [vocab]` float32 in place, which decide on what follows `token_ids` (prompt, then output).

        Called after penalties and bans, before a grammar, temperature, top_k and top_p; at least once for each token,
        and again for the same ones after a preemption. At least one logit must stay finite.
        """
        ...


ProcessorFactory = Callable[..., LogitsProcessor]


def known_processors() -> dict[str, EntryPoint]:
    """Every processor that is installed, by name. Reads the metadata of all installed packages."""
    return {point.name: point for point in entry_points(group=GROUP)}


def check_names(calls: Rows[LogitsProcessorCall], known: Rows[str]) -> None:
    """Raises `InvalidRequestError` for a processor that is not installed."""
    for place, call in enumerate(calls):
        if call.name not in known:
            listing = f"known are {', '.join(sorted(known))}" if known else "none is installed here"
            raise InvalidRequestError(
                f"logits_processors[{place}].name: there is no logits processor {call.name!r}; {listing}",
                param=f"logits_processors[{place}].name",
            )


class LogitsProcessors:
    """The processors of live sequences. One per sampler; imports a processor when a request first names it."""

    def __init__(self, known: dict[str, EntryPoint] | None = None) -> None:
        self._known = known_processors() if known is None else known
        self._factories: dict[str, ProcessorFactory] = {}
        self._live: dict[Sequence, list[LogitsProcessor]] = {}

    def check(self, calls: Rows[LogitsProcessorCall]) -> None:
        """Raises `InvalidRequestError` for an unknown name or wrong arguments, `EngineError` for a broken plug-in."""
        self._make(calls)

    def apply(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> dict[int, EngineError]:
        """Change rows of `logits [rows, vocab]` float32 in place. A rule that fails is the error of its row alone."""
        failures: dict[int, EngineError] = {}
        for row, sequence in enumerate(sequences):
            calls = sequence.request.sampling.logits_processors
            if not calls:
                continue
            try:
                live = self._live.get(sequence)
                if live is None:
                    live = self._live[sequence] = self._make(calls)
                for processor in live:
                    processor(sequence.token_ids, sequence.num_prompt_tokens, logits[row])
                problem = "" if bool(logits[row].amax().isfinite()) else "no token is left that could follow"
            except Exception as exc:
                problem = f"{type(exc).__name__}: {exc}"
            if problem:
                names = ", ".join(call.name for call in calls)
                failures[row] = EngineError(f"the logits processors of this request ({names}) failed: {problem}")
                logits[row] = 0.0
        return failures

    def forget(self, sequence: Sequence) -> None:
        """Drop a sequence's processors. Unknown ones are ignored."""
        self._live.pop(sequence, None)

    def _make(self, calls: Rows[LogitsProcessorCall]) -> list[LogitsProcessor]:
        check_names(calls, list(self._known))
        made: list[LogitsProcessor] = []
        for place, call in enumerate(calls):
            factory = self._factory(call.name)
            try:
                made.append(factory(**call.args))
            except (TypeError, ValueError) as exc:
                raise InvalidRequestError(
                    f"logits_processors[{place}].args: {call.name} refuses them: {exc}",
                    param=f"logits_processors[{place}].args",
                ) from exc
        return made

    def _factory(self, name: str) -> ProcessorFactory:
        factory = self._factories.get(name)
        if factory is None:
            try:
                factory = self._factories[name] = self._known[name].load()
            except Exception as exc:  # another package's module may fail in any way
                raise EngineError(f"the logits processor {name!r} cannot be imported: {exc}") from exc
        return factory
