from __future__ import annotations

import pytest

from llm_inference.errors import InvalidRequestError, PermissionDeniedError
from llm_inference.gateway.routing.agreement import AgreementRules, Comparison
from llm_inference.gateway.routing.deployment import Deployment, Group, Rules
from llm_inference.gateway.routing.tiers import resolve
from llm_inference.gateway.tenants.key import Scope
from tests.gateway.routing.groups import group, replicas

LADDER = ("golden", "int8", "int4")


def tiered(rules: Rules | None = None, agreement: AgreementRules | None = None) -> Group:
    deployments = [Deployment(replicas(tier), tier=tier) for tier in LADDER]
    return group(*deployments, ladder=LADDER, rules=rules, agreement=agreement)


def test_without_tiers_only_neutral_words_are_taken() -> None:
    plain = group(Deployment(replicas("a", "b")))
    for word in (None, "auto", "default"):
        assert resolve(plain, (), word, None) == ("",)
    with pytest.raises(InvalidRequestError, match="no tiers") as caught:
        resolve(plain, (), "flex", None)
    assert caught.value.param == "service_tier"


def test_who_names_a_tier_gets_it_alone() -> None:
    for tier in LADDER:
        assert resolve(tiered(), LADDER, tier, None) == (tier,)
    assert resolve(tiered(Rules(spill_over="always")), LADDER, "golden", None) == LADDER


def test_who_names_none_gets_the_default_and_those_below() -> None:
    assert resolve(tiered(), LADDER, None, None) == LADDER
    assert resolve(tiered(Rules(default_tier="int8")), LADDER, "auto", None) == ("int8", "int4")
    assert resolve(tiered(Rules(spill_over="never")), LADDER, "default", None) == ("golden",)
    assert resolve(tiered(Rules(spill_to=(("golden", "int4"),))), LADDER, None, None) == ("golden", "int4")
    circle = Rules(spill_to=(("golden", "int8"), ("int8", "golden")))
    assert resolve(tiered(circle), LADDER, None, None) == ("golden", "int8")


@pytest.mark.parametrize("word", ["flex", "priority", "int2", "Golden"])
def test_unknown_words_are_answered_with_the_known_ones(word: str) -> None:
    with pytest.raises(InvalidRequestError, match="golden, int8, int4, and auto"):
        resolve(tiered(), LADDER, word, None)


def test_a_key_has_tiers_and_the_first_of_them_is_its_default() -> None:
    cheap = Scope(tiers=("int8", "int4"))
    assert resolve(tiered(), LADDER, None, cheap) == ("int8", "int4")
    assert resolve(tiered(), LADDER, None, Scope(tiers=("int4", "int8"))) == ("int4",)
    assert resolve(tiered(), LADDER, None, Scope(tiers=("int*",))) == ("int8", "int4")
    assert resolve(tiered(Rules(default_tier="int4")), LADDER, None, Scope(tiers=("*",))) == ("int4",)
    with pytest.raises(PermissionDeniedError, match="it may use int8, int4"):
        resolve(tiered(), LADDER, "golden", cheap)
    with pytest.raises(PermissionDeniedError, match="none of the tiers"):
        resolve(tiered(), LADDER, None, Scope(tiers=("other",)))
    # It spills over to nothing that is not its own.
    assert resolve(tiered(), LADDER, None, Scope(tiers=("golden", "int4"))) == ("golden", "int4")


def test_requests_of_a_demoted_tier_go_to_the_next_better_one() -> None:
    judged = tiered(agreement=AgreementRules(min_samples=1))
    assert judged.shadowing is not None
    judged.shadowing.agreement.record("int8", Comparison(0.1, 3))
    assert resolve(judged, LADDER, "int8", None) == ("golden",)
    assert resolve(judged, LADDER, None, None) == ("golden", "int4")
    judged.shadowing.agreement.record("int4", Comparison(0.1, 3))
    assert resolve(judged, LADDER, "int4", None) == ("golden",)
    assert judged.restore("int8")
    assert not judged.restore("int8")
    assert resolve(judged, LADDER, "int4", None) == ("int8",)
