from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from llm_inference.config.deployments import by_name
from llm_inference.config.schema import ServerConfig


def entry(**keys: Any) -> dict[str, Any]:
    return {"name": "chat", "model": "org/model", **keys}


def build(*entries: dict[str, Any]) -> ServerConfig:
    return ServerConfig.model_validate({"models": list(entries)})


def refusal(*entries: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        build(*entries)
    return str(caught.value)


def test_entries_of_one_name_are_versions_or_tiers() -> None:
    config = build(
        entry(version="v1", tier="golden"), entry(version="v1", tier="int8"), entry(version="v2", tier="golden"),
        {"name": "other", "model": "x"},
    )  # fmt: skip
    assert {name: len(entries) for name, entries in by_name(config.models).items()} == {"chat": 3, "other": 1}
    assert [model.deployment for model in config.models] == [
        "chat@v1:golden", "chat@v1:int8", "chat@v2:golden", "other",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ([entry(), entry()], 'two models are named "chat"'),
        ([entry(version="v1"), entry(version="v1")], "a `version` or `tier` to tell them apart"),
        ([entry(version="v1"), {"name": "chat@v1", "model": "x"}], 'two models are named "chat@v1"'),
        ([entry(version="v1", aliases=["chat"]), entry(version="v2")], 'two models are named "chat"'),
        ([entry(version="v1", aliases=["a"]), entry(version="v2", aliases=["a"])], 'the alias "a" stands for all'),
        ([entry(version="v1"), entry(tier="int8")], "some have a `version` and some none"),
        ([entry(version="v1", tier="int8"), entry(version="v2")], "some have a `tier` and some none"),
        ([entry(version="v1", shadow=0.1), entry(version="v2", weight=0)], "no entry named"),
        ([entry(version="v1", routing={}), entry(version="v2", routing={})], "`routing` holds for all entries"),
        (
            [entry(version="v1", price={"input": 1}), entry(version="v2", price={"input": 2})],
            "`price` holds for all entries",
        ),
        ([entry(version="v1", shadow=0.1, replicas=2)], "no entry named"),
        ([entry(shadow=0.1)], "give it a `version`"),
        ([entry(tier="auto")], "leaves the choice to the service"),
        ([entry(version="a b")], "version"),
        ([entry(replicas=2, url="http://10.0.0.5:8000")], "give `url` a list"),
        ([entry(routing={"fallbacks": ["gone"]})], 'names "gone"; other models here are none'),
        ([entry(routing={"fallbacks": ["chat"]})], 'names "chat"'),
        ([entry(routing={"agreement": {}})], "compares tiers"),
        ([entry(tier="a", routing={"tiers": ["a", "b"]})], "must name each of its tiers: a"),
        ([entry(tier="a", routing={"tiers": ["a", "a"]})], "must name each tier once"),
        ([entry(tier="a", routing={"default_tier": "b"})], 'speaks of the tier "b"; its entries have a'),
        ([entry(tier="a", routing={"spill_to": {"a": "b"}})], 'speaks of the tier "b"'),
        ([entry(routing={"eject_s": 10, "max_eject_s": 5})], "`max_eject_s`"),
        ([entry(tier="a", routing={"agreement": {"min_samples": 9, "window": 5}})], "`min_samples`"),
        ([entry(routing={"policy": "random"})], "policy"),
    ],
)
def test_contradictions(entries: list[dict[str, Any]], said: str) -> None:
    assert said in refusal(*entries)


def test_a_list_of_urls_is_one_replica_each() -> None:
    (model,) = build({"name": "m", "url": ["http://10.0.0.5:8000", "http://10.0.0.6:8000"]}).models
    assert model.url == "http://10.0.0.5:8000 http://10.0.0.6:8000"
    for wrong in ([], [""], ["http://a b"], [1], ["10.0.0.5:8000"], ["http://a", "b"]):
        assert "url" in refusal({"name": "m", "url": wrong})


def test_one_entry_may_have_everything_of_its_own() -> None:
    (model,) = build(entry(replicas=3, tier="int8", routing={"tiers": ["int8"], "policy": "prefix_affinity"})).models
    assert model.routing is not None
    assert model.routing.policy == "prefix_affinity"
