from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from llm_inference.engine.base import Engine, Health
from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.engine.held import hold
from llm_inference.engine.types import Delta, EmbedRequest, GenerateRequest, SamplingParams
from llm_inference.errors import (
    EngineError,
    InvalidRequestError,
    NotReadyError,
    OverloadedError,
    RequestTimeoutError,
)
from llm_inference.gateway.routing.breaker import Ejection
from llm_inference.gateway.routing.deployment import Deployment, Group, Rules
from llm_inference.gateway.routing.policy import PrefixAffinity, RoundRobin, SessionAffinity
from llm_inference.gateway.routing.replica import Replica
from llm_inference.gateway.routing.routed_engine import RoutedEngine
from llm_inference.gateway.routing.table import RoutingTable, Target
from llm_inference.gateway.routing.wish import Wish
from llm_inference.gateway.tenants.key import Scope
from tests.gateway.routing.groups import Clock, Diary, counts, fake, group, replicas, router


def request(prompt: str = "hello", **sampling: Any) -> GenerateRequest:
    return GenerateRequest(request_id="r", model="chat", prompt=prompt, sampling=SamplingParams(**sampling))


def routed(one: Group, *others: Group, version: str | None = None, **wish: Any) -> RoutedEngine:
    return RoutedEngine(RoutingTable([one, *others]), Target(one, version), Wish(**wish))


async def run(engine: Engine, *args: Any, **sampling: Any) -> str:
    return "".join([delta.text async for delta in engine.generate(request(*args, **sampling))])


def broken(name: str, error: Exception, after: int = 0, **keys: Any) -> Replica:
    return Replica(name, FakeEngine("chat", script=FakeScript(fail_after=after, error=error)), **keys)


async def test_the_least_loaded_one_answers_and_is_named() -> None:
    one, two = members = replicas("one", "two")
    diary = Diary()
    with one.working(100):
        assert await run(routed(group(Deployment(members)), diary=diary)) == "hello"
    assert (diary.replica, counts(members)) == ("two", [0, 1])
    assert (two.in_flight, two.outstanding_tokens) == (0, 0)


async def test_load_is_held_until_the_end_and_given_back_when_the_client_leaves() -> None:
    members = replicas("one", "two", script=FakeScript(hang_after=2))
    generator = routed(group(Deployment(members))).generate(request(max_tokens=100))
    await anext(generator)
    assert members[0].in_flight == 1
    assert members[0].outstanding_tokens == 2 + 100
    await generator.aclose()
    assert (members[0].in_flight, members[0].outstanding_tokens) == (0, 0)
    assert fake(members[0]).aborted == ["r"]
    assert members[0].available


@pytest.mark.parametrize("error", [EngineError("died"), NotReadyError("gone"), OverloadedError("full"), KeyError("?")])
async def test_before_the_first_token_another_one_is_tried(error: Exception) -> None:
    bad, good = broken("bad", error), *replicas("good")
    diary = Diary()
    assert await run(routed(group(Deployment((bad, good)), policy=RoundRobin()), diary=diary)) == "hello"
    assert (diary.replica, counts((bad, good))) == ("good", [1, 1])
    assert bad.in_flight == good.in_flight == 0


async def test_after_the_first_token_nothing_is_tried() -> None:
    bad, good = broken("bad", EngineError("died"), after=2), *replicas("good")
    generator = routed(group(Deployment((bad, good)))).generate(request())
    assert (await anext(generator)).text + (await anext(generator)).text == "he"
    with pytest.raises(EngineError, match="died"):
        await anext(generator)
    assert counts((bad, good)) == [1, 0]
    assert bad.num_failures == 1


@pytest.mark.parametrize("error", [InvalidRequestError("no", param="stop"), RequestTimeoutError("too late")])
async def test_the_callers_fault_and_a_spent_deadline_are_not_tried_again(error: Exception) -> None:
    bad, good = broken("bad", error), *replicas("good")
    with pytest.raises(type(error)):
        await run(routed(group(Deployment((bad, good)))))
    assert counts((bad, good)) == [1, 0]


async def test_one_retry_and_no_more() -> None:
    members = tuple(broken(f"bad {number}", EngineError(f"died {number}")) for number in range(4))
    with pytest.raises(EngineError, match="died 1"):
        await run(routed(group(Deployment(members))))
    assert counts(members) == [1, 1, 0, 0]
    never = group(Deployment(members), rules=Rules(retry=False))
    with pytest.raises(EngineError, match="died 0"):
        await run(routed(never))


async def test_retry_after_outlives_other_failures() -> None:
    full, dead = broken("full", OverloadedError("full", retry_after_s=7)), broken("dead", EngineError("died"))
    for order in ((full, dead), (dead, full)):
        with pytest.raises(OverloadedError) as caught:
            await run(routed(group(Deployment(order), policy=RoundRobin())))
        assert caught.value.retry_after_s == 7
        full.succeeded()


class _Odd(FakeEngine):
    """Gives up by itself, or says nothing at all."""

    def __init__(self, *deltas: Delta) -> None:
        super().__init__("chat")
        self._deltas = deltas

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        for delta in self._deltas:
            yield delta


@pytest.mark.parametrize("deltas", [(), (Delta(finish_reason="abort"),), (Delta(finish_reason="error"),)])
async def test_an_answer_that_never_begins_is_a_failure(deltas: tuple[Delta, ...]) -> None:
    good = replicas("good")
    assert await run(routed(group(Deployment((Replica("odd", _Odd(*deltas)), *good))))) == "hello"


async def test_a_timeout_of_the_engine_itself_is_not_told_as_ours() -> None:
    (odd,) = replicas("odd", script=FakeScript(fail_after=0, error=asyncio.TimeoutError("its own")))
    with pytest.raises(asyncio.TimeoutError, match="its own"):
        await run(routed(group(Deployment((odd,)))))


async def test_each_attempt_has_its_own_time_for_the_first_token() -> None:
    slow, quick = *replicas("slow", script=FakeScript(first_delay_s=60)), *replicas("quick")
    limited = group(Deployment((slow, quick)), rules=Rules(attempt_timeout_s=0.3))
    assert await run(routed(limited)) == "hello"
    assert fake(slow).aborted == ["r"]
    assert slow.in_flight == 0
    alone = group(Deployment((slow,)), rules=Rules(attempt_timeout_s=0.02))
    with pytest.raises(RequestTimeoutError) as caught:
        await run(routed(alone))
    assert caught.value.public_code == "attempt_timeout"
    # Once it has begun, it may take its time.
    fake(quick).script = FakeScript(answers=["abcdefgh"], delay_s=0.05)
    assert await run(routed(group(Deployment((quick,)), rules=Rules(attempt_timeout_s=0.3)))) == "abcdefgh"


async def test_ejection_and_half_open() -> None:
    clock = Clock()
    ejection = Ejection(after=2, first_s=5)
    bad = broken("bad", EngineError("died"), ejection=ejection, clock=clock)
    (good,) = replicas("good", ejection=ejection, clock=clock)
    both = group(Deployment((bad, good)))
    for _ in range(10):
        assert await run(routed(both)) == "hello"
    assert counts((bad, good)) == [2, 10]  # two failures, each retried, then left alone
    clock.now += 5
    fake(bad).script = FakeScript(hang_after=1)
    trying = routed(both).generate(request())
    await anext(trying)
    assert counts((bad, good)) == [3, 10]  # a token is proof enough
    assert not bad.breaker.ejected
    await trying.aclose()


async def test_while_one_tries_the_others_go_elsewhere() -> None:
    clock = Clock()
    bad = broken("bad", NotReadyError("gone"), clock=clock)
    (good,) = replicas("good", clock=clock)
    both = group(Deployment((bad, good)))
    assert await run(routed(both)) == "hello"
    clock.now += 2
    fake(bad).script = FakeScript(first_delay_s=60)
    trying = asyncio.create_task(run(routed(both)))
    await asyncio.sleep(0.01)
    assert bad.in_flight == 1
    assert await run(routed(both)) == await run(routed(both)) == "hello"
    assert counts((bad, good)) == [2, 3]
    trying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trying
    assert bad.available  # nobody tries it any more, and nothing was learnt


async def test_if_all_are_ejected_the_next_one_due_is_asked() -> None:
    clock = Clock()
    members = tuple(broken(name, NotReadyError("gone"), clock=clock) for name in ("one", "two"))
    both = group(Deployment(members))
    with pytest.raises(NotReadyError):
        await run(routed(both))
    fake(members[0]).script = FakeScript()
    assert await run(routed(both)) == "hello"
    assert members[0].available


async def test_fallback_models_come_last_and_each_once() -> None:
    mine = tuple(broken(name, EngineError("died")) for name in ("a", "b", "c"))
    one = group(Deployment(mine), rules=Rules(fallbacks=("two", "gone", "three")))
    two = group(Deployment((broken("d", EngineError("dead too")),)), name="two")
    three = group(Deployment(replicas("e")), name="three")
    diary = Diary()
    assert await run(routed(one, two, three, diary=diary)) == "hello"
    assert counts(mine) == [1, 1, 0]
    assert diary.replica == "e"


async def test_what_cannot_do_what_is_asked_is_no_alternative() -> None:
    (bad,), (other,) = (broken("a", EngineError("died")),), replicas("b")
    one = group(Deployment((bad,)), rules=Rules(fallbacks=("two",)))
    two = group(Deployment((other,)), name="two")
    with pytest.raises(EngineError):
        await run(routed(one, two, fits=lambda engine: engine is bad.engine))
    assert counts((other,)) == [0]


async def test_canary_shares() -> None:
    """Within five standard deviations of the binomial distribution, and the same again with the same seed."""
    old, new = replicas("old"), replicas("new")
    seen = []
    for _ in range(2):
        both = group(Deployment(old, version="v1", weight=9), Deployment(new, version="v2", weight=1), seed=7)
        chosen = Counter(routed(both).rungs.chosen[0].version for _ in range(4000))
        assert abs(chosen["v2"] - 400) < 5 * (4000 * 0.1 * 0.9) ** 0.5
        seen.append(chosen)
    assert seen[0] == seen[1]


async def test_a_session_keeps_its_version() -> None:
    deployments = [Deployment(replicas(name), version=name, weight=weight) for name, weight in (("a", 3.0), ("b", 1.0))]
    shares: Counter[str] = Counter()
    for number in range(2000):
        versions = {
            routed(group(*deployments, seed=seed), session=f"user {number}").rungs.chosen[0].version for seed in (1, 2)
        }
        assert len(versions) == 1
        shares.update(versions)
    assert abs(shares["b"] - 500) < 5 * (2000 * 0.25 * 0.75) ** 0.5


async def test_a_version_may_be_named_and_another_one_stands_in_for_a_dead_one() -> None:
    dead, new = (broken("v1", EngineError("died")),), replicas("v2")
    both = group(Deployment(dead, version="v1"), Deployment(new, version="v2", weight=0))
    assert await run(routed(both)) == "hello"
    assert await run(routed(both, version="v2")) == "hello"
    with pytest.raises(EngineError):
        await run(routed(both, version="v1"))


async def test_a_shadow_version_gets_copies_and_answers_nobody() -> None:
    real, shadow = replicas("real"), replicas("shadow")
    both = group(Deployment(real, version="v1"), Deployment(shadow, version="v2", shadow=0.25), seed=3)
    for _ in range(200):
        assert await run(routed(both)) == "hello"
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    copies = counts(shadow)[0]
    assert copies == both.mirrors[0].num_copied
    assert abs(copies - 50) < 5 * (200 * 0.25 * 0.75) ** 0.5
    assert counts(real) == [200]
    assert all(one.request_id == "r-shadow" for one in fake(shadow[0]).requests)
    assert await run(routed(both, version="v2")) == "hello"
    await both.close()


async def test_a_shadow_that_hangs_or_fails_is_nobodys_business() -> None:
    shadow = replicas("shadow", script=FakeScript(hang_after=0))
    both = group(Deployment(replicas("real"), version="v1"), Deployment(shadow, version="v2", shadow=1.0))
    for _ in range(20):
        assert await run(routed(both)) == "hello"
    assert both.mirrors[0].num_copied == 8  # so many at once, and as many as the engine runs
    assert both.mirrors[0].num_dropped == 12
    await both.close()
    assert shadow[0].in_flight == 0
    fake(shadow[0]).script = FakeScript(fail_after=0)
    await run(routed(both))
    await asyncio.sleep(0.01)
    assert both.mirrors[0].num_failed == 1


async def test_spill_over_to_the_next_tier_and_back() -> None:
    golden, cheap = replicas("golden", max_in_flight=1), replicas("int8", max_in_flight=1)
    deployments = [Deployment(golden, tier="golden"), Deployment(cheap, tier="int8")]
    tiered = group(*deployments, ladder=("golden", "int8"))
    diary = Diary()
    with golden[0].working(10):
        await run(routed(tiered, diary=diary))
        assert (diary.replica, diary.tier) == ("int8", "int8")
        await run(routed(tiered, tier="golden", diary=diary))
        assert diary.tier == "golden"  # who names it waits for it
        with cheap[0].working(10):
            await run(routed(tiered, diary=diary))
            assert diary.tier == "golden"  # all are full: the first choice
    await run(routed(tiered, diary=diary))
    assert diary.tier == "golden"


async def test_prompts_that_begin_alike_share_a_replica() -> None:
    members = replicas(*"abcde")
    one = group(Deployment(members), policy=PrefixAffinity())
    for number in range(20):
        await run(routed(one), "x" * 1024 + str(number))
    assert sorted(counts(members)) == [0, 0, 0, 0, 20]
    for number in range(50):
        await run(routed(one), f"{number}" * 100)
    assert min(counts(members)) > 0


async def test_sessions_share_a_replica() -> None:
    members = replicas(*"abcde")
    one = group(Deployment(members), policy=SessionAffinity())
    for _ in range(10):
        await run(routed(one, session="s1"))
    assert sorted(counts(members)) == [0, 0, 0, 0, 10]


async def test_it_is_an_engine_with_all_powers() -> None:
    members = replicas("a", "b")
    engine = routed(group(Deployment(members)))
    assert engine.info.name == "chat"
    assert (await engine.tokenize("ab")).token_ids
    assert await engine.detokenize((104, 105)) == "hi"
    result = await engine.embed(EmbedRequest(request_id="e", model="chat", inputs=("x",)))
    assert len(result.vectors) == 1
    assert (await engine.health()) == Health(live=True, ready=True)
    fake(members[0]).health_now = Health(live=False, ready=False, reason="dead")
    assert (await engine.health()) == Health(live=True, ready=True, reason="a: dead")
    fake(members[1]).health_now = Health(live=True, ready=False, reason="loading")
    health = await engine.health()
    assert (health.live, health.ready, health.reason) == (True, False, "a: dead; b: loading")
    await run(engine)
    assert engine.stats().prompt_tokens == sum(fake(one).stats().prompt_tokens for one in members)


async def test_embeddings_are_tried_again_too() -> None:
    class Broken(FakeEngine):
        async def embed(self, request: EmbedRequest) -> Any:
            raise EngineError("died")

    bad, good = Replica("bad", Broken("chat")), *replicas("good")
    engine = routed(group(Deployment((bad, good))))
    assert (await engine.embed(EmbedRequest(request_id="e", model="chat", inputs=("x",)))).vectors
    with pytest.raises(EngineError):
        await routed(group(Deployment((bad,)))).embed(EmbedRequest(request_id="e", model="chat", inputs=("x",)))


async def test_a_request_keeps_the_table_that_it_began_with() -> None:
    old, new = replicas("old", script=FakeScript(answers=["old!"], delay_s=0.001)), replicas("new")
    one = router(group(Deployment(old), Deployment(old)))
    engine = one.route(one.find("chat"), Wish())
    generator = engine.generate(request())
    first = await anext(generator)
    replaced = one.replace(RoutingTable([group(Deployment(new))]))
    assert first.text + "".join([delta.text async for delta in generator]) == "old!"
    assert one.resolve("chat")[1] is new[0].engine
    await asyncio.gather(*(each.close() for each in replaced.groups.values()))


async def test_random_failures_always_end_in_one_way() -> None:
    """Whatever the engines do: an answer as a whole, or one error, and nothing is left in flight."""
    rng = random.Random(11)
    for _ in range(150):
        members = []
        for name in "abc":
            after = rng.choice([None, 0, 1, 3])
            error = rng.choice([EngineError("x"), OverloadedError("x"), NotReadyError("x"), InvalidRequestError("x")])
            members.append(Replica(name, FakeEngine("chat", script=FakeScript(fail_after=after, error=error))))
        finished = 0
        try:
            async for delta in routed(group(Deployment(tuple(members)), policy=RoundRobin())).generate(request()):
                finished += delta.finish_reason is not None
        except (EngineError, OverloadedError, NotReadyError, InvalidRequestError):
            assert finished == 0
        else:
            assert finished == 1
        assert [(one.in_flight, one.outstanding_tokens) for one in members] == [(0, 0)] * 3
        assert sum(counts(members)) <= 2


async def test_what_is_drained_or_not_loaded_is_not_asked_while_others_are_there() -> None:
    woken: list[str] = []

    async def wake() -> None:
        woken.append("late")
        late.open(FakeEngine("chat"))

    drained, late = hold(FakeEngine("chat")), hold(FakeEngine("chat"), state="unloaded", wake=wake)
    drained.mark("draining", "by an operator", barred=True)
    members = (
        Replica("drained", drained),
        Replica("late", late, max_in_flight=1),
        Replica("loaded", hold(FakeEngine("chat", script=FakeScript(delay_s=0.01))), max_in_flight=1),
    )
    assert [one.available for one in members] == [False, True, True]
    assert [one.loaded for one in members] == [False, False, True]
    assert [one.idle for one in members] == [False, False, True]
    both, diary = group(Deployment(members), policy=RoundRobin()), Diary()
    for _ in range(3):
        assert await run(routed(both, diary=diary)) == "hello"
        assert (diary.replica, woken) == ("loaded", [])
    slow = asyncio.create_task(run(routed(both)))
    await asyncio.sleep(0.005)
    assert await run(routed(both, diary=diary)) == "hello", "there is no room but with the one that is to be loaded"
    assert (diary.replica, woken) == ("late", ["late"])
    assert await slow == "hello"


async def test_with_all_taken_away_or_ejected_the_ejected_one_is_tried() -> None:
    drained = hold(FakeEngine("chat"))
    drained.mark("unloaded", "by an operator", barred=True)
    ill = broken("ill", NotReadyError("gone"))
    both = group(Deployment((Replica("drained", drained), ill)), rules=Rules(retry=False))
    with pytest.raises(NotReadyError, match="gone"):
        await run(routed(both))
    fake(ill).script = FakeScript()
    assert await run(routed(both)) == "hello"


async def test_a_lower_tier_is_one_that_the_request_may_have() -> None:
    best, good, low = (Deployment(replicas(name), tier=name) for name in ("golden", "int8", "int4"))
    ladder = ("golden", "int8", "int4")
    three = group(best, good, low, ladder=ladder)
    engine = routed(three)
    assert (engine.lower(), [one.tier for one in engine.rungs.chosen]) == ("int8", ["int8", "int4"])
    assert (engine.lower(), engine.lower()) == ("int4", "")
    assert routed(three, tier="golden").lower() == ""
    assert routed(three, scope=Scope(tiers=("golden", "int4"))).lower() == "int4"
    assert routed(three, fits=lambda one: one is not good.replicas[0].engine).lower() == "int4"
    never = routed(group(best, good, low, ladder=ladder, rules=Rules(spill_over="never")))
    assert (never.lower(), [one.tier for one in never.rungs.chosen]) == ("int8", ["int8"])
    always = routed(group(best, good, low, ladder=ladder, rules=Rules(spill_over="always")), tier="golden")
    assert always.lower() == "int8"
    assert routed(group(Deployment(replicas("a", "b")))).lower() == ""


async def test_a_lower_tier_is_one_that_is_there() -> None:
    """Otherwise requests would be refused that the tier above could answer."""
    drained = hold(FakeEngine("chat"))
    drained.mark("draining", "by an operator", barred=True)
    best, gone, low = (
        Deployment(replicas("golden"), tier="golden"),
        Deployment((Replica("int8", drained),), tier="int8"),
        Deployment(replicas("int4"), tier="int4"),
    )
    for spill_over in ("default", "never"):
        rules = Rules(spill_over=spill_over)
        assert routed(group(best, gone, ladder=("golden", "int8"), rules=rules)).lower() == ""
        assert routed(group(best, gone, low, ladder=("golden", "int8", "int4"), rules=rules)).lower() == "int4"


async def test_a_lower_tier_can_do_what_is_asked_in_the_version_that_is_chosen() -> None:
    best = Deployment(replicas("golden"), tier="golden")
    able = Deployment(replicas("able"), tier="int8", version="1", weight=0)
    unable = Deployment(replicas("unable"), tier="int8", version="2", weight=1)
    two = group(best, able, unable, ladder=("golden", "int8"))
    assert routed(two, fits=lambda one: one is not unable.replicas[0].engine).lower() == ""
    assert routed(two).lower() == "int8"
