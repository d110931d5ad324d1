"""Entries of `models:` that belong to one name: what they must differ in, and what they must agree on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_inference.config.schema import ModelConfig

#: Of the name as a whole: one of its entries says them.
_OF_THE_NAME = ("routing", "limits", "price")


def by_name(models: Sequence[ModelConfig]) -> dict[str, tuple[ModelConfig, ...]]:
    """The entries of each name, in the order given."""
    found: dict[str, tuple[ModelConfig, ...]] = {}
    for model in models:
        found[model.name] = (*found.get(model.name, ()), model)
    return found


def check_deployments(models: Sequence[ModelConfig]) -> None:
    """Raises `ValueError` for the first contradiction."""
    names = by_name(models)
    _check_names(names)
    applications = [(entry.ray.app_prefix, entry.name) for entry in models if entry.engine == "ray"]
    for place in applications:
        if applications.count(place) > 1:
            raise ValueError(
                f'two entries named "{place[1]}" would be one application on Ray; give each a `ray.app_prefix`'
            )
    for name, entries in names.items():
        if not any(entry.weight > 0 and not entry.shadow for entry in entries):
            raise ValueError(f'no entry named "{name}" takes requests: give one a `weight` above 0 and no `shadow`')
        if len(entries) > 1:
            _check_entries(name, entries)
        for entry in entries:
            if entry.routing is not None:
                _check_routing(name, entries, entry, names)


def _check_names(names: dict[str, tuple[ModelConfig, ...]]) -> None:
    """All that clients may say means one thing."""
    for name, entries in names.items():
        aliases = [alias for entry in entries for alias in entry.aliases]
        for alias in aliases:
            if aliases.count(alias) > 1:
                raise ValueError(f'the alias "{alias}" stands for all entries named "{name}"; say it once')
    said = [*names, *(one for entries in names.values() for one in _versions(entries))]
    said += [alias for entries in names.values() for one in entries for alias in one.aliases]
    seen: set[str] = set()
    for name in said:
        if name in seen:
            raise ValueError(f'two models are named "{name}"; give each its own `name`')
        seen.add(name)


def _versions(entries: Sequence[ModelConfig]) -> set[str]:
    return {f"{entry.name}@{entry.version}" for entry in entries if entry.version is not None}


def _check_entries(name: str, entries: Sequence[ModelConfig]) -> None:
    seen: set[tuple[str | None, str | None]] = set()
    for entry in entries:
        if (entry.version, entry.tier) in seen:
            raise ValueError(
                f'two models are named "{name}"; give each its own `name`, or a `version` or `tier` to tell them apart'
            )
        seen.add((entry.version, entry.tier))
    if len({entry.version is None for entry in entries}) > 1:
        raise ValueError(f'of the entries named "{name}" some have a `version` and some none; give each one')
    if len({entry.tier is None for entry in entries if not entry.shadow}) > 1:
        raise ValueError(f'of the entries named "{name}" some have a `tier` and some none; give each one')
    for key in _OF_THE_NAME:
        default = type(entries[0]).model_fields[key].default
        if sum(getattr(entry, key) != default for entry in entries) > 1:
            raise ValueError(f'`{key}` holds for all entries named "{name}"; say it in one of them')


def _check_routing(
    name: str, entries: Sequence[ModelConfig], entry: ModelConfig, names: dict[str, tuple[ModelConfig, ...]]
) -> None:
    routing = entry.routing
    assert routing is not None
    tiers = {one.tier for one in entries if one.tier is not None}
    if routing.tiers and set(routing.tiers) != tiers:
        raise ValueError(f'`routing.tiers` of "{name}" must name each of its tiers: {_listed(tiers)}')
    said = [routing.default_tier, *routing.spill_to, *routing.spill_to.values()]
    for tier in said:
        if tier is not None and tier not in tiers:
            raise ValueError(f'`routing` of "{name}" speaks of the tier "{tier}"; its entries have {_listed(tiers)}')
    if routing.agreement is not None and len(tiers) < 2:
        raise ValueError(f'`routing.agreement` compares tiers; "{name}" has {_listed(tiers)}')
    for fallback in routing.fallbacks:
        if fallback == name or fallback not in names:
            others = _listed({other for other in names if other != name})
            raise ValueError(f'`routing.fallbacks` of "{name}" names "{fallback}"; other models here are {others}')


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "none"
