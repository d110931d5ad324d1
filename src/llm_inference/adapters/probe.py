"""What servers at given addresses say of themselves: that they are there, their models, the length of their context.

Asked once, at the start. `/models` is the only route that all of them have; contexts stand in different places.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_inference.adapters.profile import Profile
from llm_inference.adapters.upstream import Reply, Upstream
from llm_inference.errors import ConfigError, NotReadyError, StartupError

logger = logging.getLogger(__name__)

_CONTEXT_KEYS = ("max_model_len", "context_length", "max_context_length", "n_ctx", "max_total_tokens", "context_window")


@dataclass(frozen=True, slots=True)
class Probe:
    """`max_model_len`: the smallest context among the servers, None where none says."""

    max_model_len: int | None = None
    owned_by: str | None = None


async def probe(upstream: Upstream, model: str, profile: Profile) -> Probe:
    """Ask every server. One that does not answer is a warning as long as another does.

    Raises `StartupError` when none answers, `ConfigError` for a wrong key or a model that is not served there.
    """
    replies = await asyncio.gather(
        *(upstream.ask(upstream.api_url(endpoint, "/models")) for endpoint in upstream.pool.endpoints),
        return_exceptions=True,
    )
    contexts: list[int] = []
    owners: list[str] = []
    failures: list[str] = []
    for endpoint, reply in zip(upstream.pool.endpoints, replies, strict=True):
        if isinstance(reply, NotReadyError):
            failures.append(reply.detail or reply.message)
            upstream.pool.failed(endpoint, unreachable=True)
            continue
        if isinstance(reply, BaseException):
            raise reply
        card = _card(reply, model, endpoint.url)
        if context := _context(card):
            contexts.append(context)
        if isinstance(owner := card.get("owned_by"), str):
            owners.append(owner)
    if len(failures) == len(replies):
        raise StartupError(
            f"the engine {profile.name!r} is not there: {'; '.join(failures)}. Check `url`, or start it."
        )
    for failure in failures:
        logger.warning("%s; the other servers of this model serve on", failure)
    return Probe(min(contexts, default=None), owners[0] if owners else None)


def _card(reply: Reply, model: str, url: str) -> Mapping[str, Any]:
    """The entry of `model` in a model list; empty where the server has no such list."""
    if reply.status in (401, 403):
        raise ConfigError(f"{url} refuses our key ({reply.status}); set `api_key` of this model")
    if reply.status >= 500:
        raise StartupError(f"{url} answers {reply.status} to /models: {str(reply.body)[:300]}")
    entries = reply.body.get("data") if isinstance(reply.body, dict) else None
    if reply.status != 200 or not isinstance(entries, list):
        return {}
    cards = {str(entry["id"]): entry for entry in entries if isinstance(entry, dict) and "id" in entry}
    if model in cards or not cards:
        return cards.get(model, {})
    # A server of one model often answers whatever name it is called by, under the path of its file.
    short = [name for name in cards if name.removesuffix(":latest") == model]
    if short:
        return dict(cards[short[0]])
    near = difflib.get_close_matches(model, list(cards), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it serves {', '.join(map(repr, sorted(cards)[:10]))}"
    raise ConfigError(f"{url} does not serve a model {model!r}; {hint}")


def _context(card: Mapping[str, Any]) -> int | None:
    meta = card.get("meta")
    for source in (card, meta if isinstance(meta, dict) else {}):
        for key in _CONTEXT_KEYS:
            value = source.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None
