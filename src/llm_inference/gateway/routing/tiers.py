"""From what a request and its key say to a tier, and on to those that it may spill over to."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from llm_inference.errors import InvalidRequestError, PermissionDeniedError
from llm_inference.gateway.routing.deployment import Group
from llm_inference.gateway.tenants.key import Scope

#: Said by clients that leave the choice to the service.
NEUTRAL = ("auto", "default")


def resolve(group: Group, tiers: Sequence[str], asked: str | None, scope: Scope | None) -> tuple[str, ...]:
    """The tiers that may serve, in the order in which they are tried; `("",)` where there are none.

    `tiers` are those to choose from, best first. Raises `InvalidRequestError` for one that is unknown,
    `PermissionDeniedError` for one that is not the key's.
    """
    named = asked is not None and asked not in NEUTRAL
    if not tiers:
        if named:
            raise InvalidRequestError(
                f"service_tier: the model {group.name!r} has no tiers to choose from; leave it out.",
                param="service_tier",
            )
        return ("",)
    allowed = tiers if scope is None else [tier for tier in tiers if scope.may_use_tier(tier)]
    if named:
        assert asked is not None
        if asked not in tiers:
            raise InvalidRequestError(
                f"service_tier: {asked[:64]!r} is no tier of {group.name!r}; it has {', '.join(tiers)}, and auto.",
                param="service_tier",
            )
        if asked not in allowed:
            raise PermissionDeniedError(
                f"This key may not use the tier {asked!r}; it may use {', '.join(allowed) or 'none'}.",
                param="service_tier",
            )
        first = asked
    else:
        if not allowed:
            raise PermissionDeniedError(f"This key may use none of the tiers of {group.name!r} ({', '.join(tiers)}).")
        first = _default(group, allowed, scope)
    return _in_order(group, tiers, allowed, first, named)


def _default(group: Group, allowed: Sequence[str], scope: Scope | None) -> str:
    """The key's own: what the first of its globs that fits gives; the model's default where that is among it."""
    for glob in scope.tiers if scope is not None else ("*",):
        fitting = [tier for tier in allowed if fnmatchcase(tier, glob)]
        if fitting:
            return group.rules.default_tier if group.rules.default_tier in fitting else fitting[0]
    return allowed[0]


def _in_order(group: Group, tiers: Sequence[str], allowed: Sequence[str], first: str, named: bool) -> tuple[str, ...]:
    if group.demoted(first):
        # Traffic of a demoted tier goes up, to the next better one: it may cost more, it is not worse.
        better = [tier for tier in tiers[: tiers.index(first)] if not group.demoted(tier)]
        if better:
            return (better[-1],)
    mode = group.rules.spill_over
    if mode == "never" or (named and mode == "default"):
        return (first,)
    return (first, *(tier for tier in group.lower(first) if tier in allowed and not group.demoted(tier)))
