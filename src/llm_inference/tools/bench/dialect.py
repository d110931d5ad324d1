"""Which of the fields that a benchmark would like to send this server takes, found out by asking it.

A field that the server refuses is left out and said so: a benchmark must not stop at a server that is strict, nor
quietly measure something else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from llm_inference.errors import ConfigError, EngineError
from llm_inference.tools.bench.settings import Endpoint
from llm_inference.tools.bench.timeline import Timeline

_REFUSALS = (400, 422)

#: What each optional field is for; the order is that in which an error message is searched for them.
_LOSSES = {
    "continuous_usage": "tokens are counted as one a chunk",
    "usage": "token totals are counted as one a chunk, input tokens are those that were planned",
    "ignore_eos": "answers may be shorter than was asked for",
}
_NAMES = {"continuous_usage": "continuous_usage_stats", "usage": "stream_options", "ignore_eos": "ignore_eos"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """Fields beyond the plain API that are sent."""

    ignore_eos: bool = True
    usage: bool = True  # stream_options.include_usage
    continuous_usage: bool = True  # stream_options.continuous_usage_stats
    max_tokens_field: str = "max_tokens"

    def body(self, model: str, endpoint: Endpoint, prompt: Any, max_tokens: int) -> dict[str, Any]:
        """The request's JSON. `prompt` is text, token ids, or for chat text or a list of messages."""
        body: dict[str, Any] = {"model": model, **prompt_field(endpoint, prompt)}
        body |= {self.max_tokens_field: max_tokens, "temperature": 0, "stream": True}
        if self.usage:
            body["stream_options"] = {"include_usage": True}
            if self.continuous_usage:
                body["stream_options"]["continuous_usage_stats"] = True
        if self.ignore_eos:
            body["ignore_eos"] = True
        return body


def prompt_field(endpoint: Endpoint, prompt: Any) -> dict[str, Any]:
    """`prompt` under the name that the endpoint has for it."""
    if endpoint == "completions":
        return {"prompt": prompt}
    return {"messages": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt}


async def learn(send: Callable[[Dialect], Awaitable[Timeline]], wanted: Dialect) -> tuple[Dialect, list[str]]:
    """The most of `wanted` that the server takes, and a note for each thing that it does not.

    `send` makes a small request in a dialect. Raises `ConfigError` when the server refuses the plainest one, too, or
    cannot be reached, `EngineError` when it fails at it.
    """
    dialect = wanted
    notes: list[str] = []
    while True:
        timeline = await send(dialect)
        failure = timeline.failure
        if failure is None or failure.kind == "empty_answer":
            return dialect, notes
        if failure.status not in _REFUSALS:
            break
        name = _blamed(dialect, failure.detail)
        if name == "max_tokens":
            dialect = replace(dialect, max_tokens_field="max_completion_tokens")
            notes.append("the server refuses max_tokens; max_completion_tokens is sent instead")
        elif name is not None:
            dialect = _without(dialect, name)
            notes.append(f"the server refuses {_NAMES[name]} ({failure.detail}); without it {_LOSSES[name]}")
        elif left := [one for one in _LOSSES if getattr(dialect, one)]:
            # The message names nothing that we could leave out: leave out everything that need not be there.
            for one in left:
                dialect = _without(dialect, one)
            names, losses = ", ".join(_NAMES[one] for one in left), "; ".join(_LOSSES[one] for one in left)
            notes.append(f"the server refuses a request with {names} ({failure.detail}); without them: {losses}")
        else:
            break
    message = f"a first small request failed: {failure.kind}: {failure.detail}"
    if failure.status is not None and 300 <= failure.status < 500:
        raise ConfigError(f"{message}. Check --url, --model, --api-key and --endpoint")
    raise EngineError(message)


def _blamed(dialect: Dialect, message: str) -> str | None:
    for name in _LOSSES:
        if getattr(dialect, name) and _NAMES[name] in message:
            return name
    if "max_completion_tokens" in message and dialect.max_tokens_field == "max_tokens":
        return "max_tokens"
    return None


def _without(dialect: Dialect, name: str) -> Dialect:
    if name == "ignore_eos":
        return replace(dialect, ignore_eos=False)
    if name == "continuous_usage":
        return replace(dialect, continuous_usage=False)
    return replace(dialect, usage=False, continuous_usage=False)
