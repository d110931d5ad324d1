from __future__ import annotations

import asyncio
from typing import Any

import pytest

from llm_inference.engine.fake import FakeScript
from llm_inference.engine.types import GenerateRequest, SamplingParams
from llm_inference.gateway.routing import shadowing
from llm_inference.gateway.routing.agreement import AgreementRules
from llm_inference.gateway.routing.deployment import Deployment, Group
from llm_inference.gateway.routing.routed_engine import RoutedEngine
from llm_inference.gateway.routing.shadowing import LOWEST_PRIORITY, Shadowing
from llm_inference.gateway.routing.table import RoutingTable, Target
from llm_inference.gateway.routing.wish import Wish
from tests.gateway.routing.groups import counts, fake, group, replicas
from tests.gateway.serving import until

RULES = AgreementRules(sample=1.0, threshold=0.9, window=10, min_samples=3, restore_after=3, max_queue=4)


class Tiers:
    """golden, int8 and int4 of one model; int4 may answer nonsense."""

    def __init__(self, rules: AgreementRules = RULES, *, bad: bool = True, **keys: Any) -> None:
        self.golden, self.int8, self.int4 = replicas("golden", "int8", "int4")
        if bad:
            fake(self.int4).script = FakeScript(answers=["nonsense!"])
        members = (("golden", self.golden), ("int8", self.int8), ("int4", self.int4))
        deployments = [Deployment((replica,), tier=tier, **keys) for tier, replica in members]
        self.group: Group = group(*deployments, ladder=("golden", "int8", "int4"), agreement=rules)
        assert self.group.shadowing is not None
        self.shadowing: Shadowing = self.group.shadowing

    async def ask(self, tier: str | None = None, **sampling: Any) -> str:
        diary = Served()
        engine = RoutedEngine(RoutingTable([self.group]), Target(self.group), Wish(tier=tier, diary=diary))
        work = GenerateRequest(
            request_id="r", model="chat", prompt="hello", sampling=SamplingParams(**{"temperature": 0.0, **sampling})
        )
        async for _ in engine.generate(work):
            pass
        return diary.tier

    async def settled(self) -> None:
        await until(lambda: self.shadowing._worker is None or self.shadowing._worker.done())


class Served:
    replica = ""
    tier = ""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadowing, "_POLL_S", 0.002)


async def test_a_bad_tier_is_demoted_and_its_requests_go_up() -> None:
    tiers = Tiers()
    for _ in range(3):
        assert await tiers.ask("int4") == "int4"
        assert await tiers.ask("int8") == "int8"
        await tiers.settled()
    assert tiers.group.demoted("int4")
    assert not tiers.group.demoted("int8")
    report = tiers.shadowing.agreement.report()
    assert report["int8"].share == 1.0
    assert report["int4"].share is not None
    assert report["int4"].share < 0.5
    assert report["int4"].first_divergence == 0
    assert await tiers.ask("int4") == "int8"


async def test_it_comes_back_after_good_samples_which_go_on_without_users() -> None:
    tiers = Tiers()
    for _ in range(3):
        await tiers.ask("int4")
        await tiers.settled()
    before = len(fake(tiers.int4).requests)
    for _ in range(2):
        assert await tiers.ask("int4") == "int8"
        await tiers.settled()
    assert len(fake(tiers.int4).requests) == before + 2  # compared, and still bad
    assert tiers.group.demoted("int4")
    fake(tiers.int4).script = FakeScript()
    for number in range(3):
        assert tiers.group.demoted("int4"), number
        await tiers.ask("golden")  # the best tier's answers serve as well
        await tiers.settled()
    assert not tiers.group.demoted("int4")
    assert await tiers.ask("int4") == "int4"


async def test_an_operator_may_restore_it() -> None:
    tiers = Tiers()
    for _ in range(3):
        await tiers.ask("int4")
        await tiers.settled()
    assert tiers.group.restore("int4")
    assert await tiers.ask("int4") == "int4"


async def test_replays_are_last_in_the_queue_and_greedy() -> None:
    tiers = Tiers(greedy=True)
    await tiers.ask("int8", temperature=None)
    await tiers.settled()
    (replay,) = fake(tiers.golden).requests
    assert (replay.request_id, replay.priority) == ("r-golden", LOWEST_PRIORITY)
    assert replay.sampling.temperature == 0
    assert tiers.shadowing.num_replayed == 1


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.7}, {"temperature": None}, {"n": 2}, {"num_beams": 2}, {"best_of": 2}]
)
async def test_what_is_drawn_or_several_is_not_compared(sampling: dict[str, Any]) -> None:
    tiers = Tiers()
    await tiers.ask("int8", **sampling)
    await tiers.settled()
    assert counts([tiers.golden]) == [0]


async def test_only_a_share_is_compared_and_the_best_tier_is_not() -> None:
    tiers = Tiers(AgreementRules(sample=0.25, threshold=0, max_queue=100))
    for _ in range(100):
        await tiers.ask("int8")
    await tiers.settled()
    assert abs(counts([tiers.golden])[0] - 25) < 5 * (100 * 0.25 * 0.75) ** 0.5
    before = counts([tiers.golden, tiers.int8, tiers.int4])
    await tiers.ask("golden")
    await tiers.settled()
    assert counts([tiers.golden, tiers.int8, tiers.int4]) == [before[0] + 1, *before[1:]]


async def test_it_waits_until_the_golden_replica_is_idle() -> None:
    tiers = Tiers()
    with tiers.golden.working(10):
        await tiers.ask("int8")
        await asyncio.sleep(0.02)
        assert counts([tiers.golden]) == [0]
    await tiers.settled()
    assert counts([tiers.golden]) == [1]


async def test_what_does_not_fit_into_the_queue_is_dropped() -> None:
    tiers = Tiers()
    with tiers.golden.working(10):
        for _ in range(10):
            await tiers.ask("int8")
        assert tiers.shadowing.num_dropped == 6
    await tiers.group.close()
    assert counts([tiers.golden]) == [0]


async def test_who_waits_too_long_is_dropped() -> None:
    tiers = Tiers()
    tiers.shadowing._patience_s = 0.01
    with tiers.golden.working(10):
        await tiers.ask("int8")
        await tiers.settled()
    assert (tiers.shadowing.num_dropped, counts([tiers.golden])) == (1, [0])


async def test_a_users_request_ends_a_replay() -> None:
    tiers = Tiers()
    fake(tiers.golden).script = FakeScript(answers=["hello"], delay_s=0.01)
    await tiers.ask("int8")
    await until(lambda: tiers.golden.num_background == 1)
    assert not tiers.golden.saturated
    await tiers.ask("golden")
    await tiers.settled()
    assert "r-golden" in fake(tiers.golden).aborted
    assert tiers.golden.num_background == 0
    assert tiers.shadowing.agreement.report() == {}


async def test_a_golden_replica_that_fails_says_nothing_of_the_others() -> None:
    tiers = Tiers()
    fake(tiers.golden).script = FakeScript(fail_after=1)
    await tiers.ask("int8")
    await tiers.settled()
    assert tiers.shadowing.num_dropped == 1
    assert tiers.shadowing.agreement.report() == {}
    fake(tiers.golden).script = FakeScript(fail_after=0, error=KeyError("a defect"))
    await tiers.ask("int8")
    await tiers.settled()
    assert tiers.shadowing.num_dropped == 2


async def test_a_replay_that_hangs_makes_room_for_the_next() -> None:
    tiers = Tiers()
    tiers.shadowing._timeout_s = 0.02
    fake(tiers.golden).script = FakeScript(hang_after=1)
    await tiers.ask("int8")
    await tiers.settled()
    assert (tiers.shadowing.num_dropped, tiers.golden.num_background) == (1, 0)
    assert fake(tiers.golden).aborted == ["r-golden"]
    fake(tiers.golden).script = FakeScript()
    await tiers.ask("int8")
    await tiers.settled()
    assert tiers.shadowing.num_replayed == 1


async def test_an_answer_that_nobody_waited_for_is_not_compared() -> None:
    tiers = Tiers()
    engine = RoutedEngine(RoutingTable([tiers.group]), Target(tiers.group), Wish(tier="int8"))
    work = GenerateRequest(request_id="r", model="chat", prompt="hello", sampling=SamplingParams(temperature=0.0))
    generator = engine.generate(work)
    await anext(generator)
    await generator.aclose()
    await tiers.settled()
    assert counts([tiers.golden]) == [0]


async def test_versions_are_not_compared_with_each_other() -> None:
    (golden,), (cheap,) = replicas("v1"), replicas("v2")
    both = group(
        Deployment((golden,), version="v1", tier="golden"),
        Deployment((cheap,), version="v2", tier="int8"),
        ladder=("golden", "int8"),
        agreement=RULES,
    )
    assert both.shadowing is not None
    work = GenerateRequest(request_id="r", model="chat", prompt="x", sampling=SamplingParams(temperature=0.0))
    assert both.shadowing.sample(work, "v2", "int8", greedy=False) is None
