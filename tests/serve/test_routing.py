from __future__ import annotations

import random
from typing import Any

import pytest

from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.fake import FakeEngine
from llm_inference.gateway.routing.policy import LeastTokens, PrefixAffinity
from llm_inference.gateway.routing.table import RoutingTable
from llm_inference.serve.routing import ladder, replica_configs, replica_ids, routing_table


def entry(**keys: Any) -> ModelConfig:
    return ModelConfig.model_validate({"name": "chat", "model": "org/model", **keys})


def table(*entries: ModelConfig) -> RoutingTable:
    engines: dict[str, Engine] = {one: FakeEngine() for model in entries for one in replica_ids(model)}
    return routing_table(entries, engines, rng=random.Random(1))


def test_ids_say_what_a_replica_is_of() -> None:
    assert replica_ids(entry()) == ("chat",)
    assert replica_ids(entry(version="v2", tier="int8")) == ("chat@v2:int8",)
    assert replica_ids(entry(replicas=2)) == ("chat#0", "chat#1")
    assert replica_ids(entry(url=["http://a", "http://b"], tier="x")) == ("chat:x#0", "chat:x#1")


def test_an_engine_is_told_only_what_is_its_own() -> None:
    model = entry(precision="int8", max_num_seqs=4, generation={"temperature": 0.5})
    assert replica_configs(model) == {"chat": model}
    assert replica_configs(model)["chat"] is model
    told = replica_configs(
        entry(
            version="v1", tier="int8", weight=2, replicas=2, routing={}, limits={"tokens_per_minute": 5},
            price={"input": 1}, precision="int8", max_num_seqs=4, generation={"temperature": 0.5},
        )
    )  # fmt: skip
    assert told == {"chat@v1:int8#0": model, "chat@v1:int8#1": model}
    assert all(one.model_fields_set == model.model_fields_set for one in told.values())


def test_each_remote_replica_has_its_own_address_and_the_key() -> None:
    told = replica_configs(entry(url=["http://a:1", "http://b:2"], api_key="secret"))
    assert [one.url for one in told.values()] == ["http://a:1", "http://b:2"]
    assert all(one.api_key is not None and one.api_key.get_secret_value() == "secret" for one in told.values())


def test_the_default_model_keeps_what_suits_it() -> None:
    (told, _) = replica_configs(ModelConfig.model_validate({"replicas": 2})).values()
    assert (told.name, told.generation.temperature) == ("SmolLM2-135M-Instruct", 0)


@pytest.mark.parametrize(
    ("keys", "order"),
    [
        ([("a", {"precision": "int4"}), ("b", {"precision": "float32"}), ("c", {"precision": "int8"})], "bca"),
        ([("a", {"precision": "bf16"}), ("b", {"precision": "fp16"}), ("c", {"precision": "fp32"})], "cab"),
        ([("a", {"quantization": "awq"}), ("b", {}), ("c", {"quantization": "fp8"})], "bca"),
    ],
)
def test_tiers_are_ordered_by_precision(keys: list[tuple[str, dict[str, Any]]], order: str) -> None:
    assert "".join(ladder([entry(tier=tier, **more) for tier, more in keys])) == order


def test_the_table_is_as_configured() -> None:
    routing = {"policy": "prefix_affinity", "fallbacks": ["small"], "attempt_timeout_s": 5, "tiers": ["int8", "golden"]}
    made = table(
        entry(tier="golden", precision="float32", aliases=["best"], generation={"temperature": 0}),
        entry(tier="int8", precision="int8", replicas=2, routing={**routing, "agreement": {"sample": 0.5}}),
        ModelConfig.model_validate({"name": "small", "model": "x"}),
    )
    group = made.find("best").group
    assert group is made.groups["chat"]
    assert group.ladder == ("int8", "golden")
    assert isinstance(group.policy, PrefixAffinity)
    assert (group.rules.fallbacks, group.rules.attempt_timeout_s) == (("small",), 5)
    assert [replica.id for replica in group.replicas] == ["chat:golden", "chat:int8#0", "chat:int8#1"]
    assert [one.greedy for one in group.deployments] == [True, False]
    assert group.shadowing is not None
    assert (group.shadowing.agreement.golden, group.shadowing.agreement.rules.sample) == ("int8", 0.5)
    assert group.only is None
    small = made.groups["small"]
    assert small.only is not None
    assert small.only.id == "small"
    assert isinstance(small.policy, LeastTokens)


@pytest.mark.parametrize("keys", [{"replicas": 2}, {"tier": "x"}, {"routing": {"attempt_timeout_s": 1}}])
def test_only_what_has_nothing_to_choose_is_passed_straight_on(keys: dict[str, Any]) -> None:
    assert table(entry(**keys)).groups["chat"].only is None


def test_a_version_alone_is_nothing_to_choose() -> None:
    assert table(entry(version="v1")).groups["chat"].only is not None
