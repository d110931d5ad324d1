from __future__ import annotations

import asyncio

from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.engine.held import hold
from llm_inference.gateway.routing.deployment import Deployment
from llm_inference.gateway.routing.replica import Replica
from llm_inference.gateway.routing.router import Router
from llm_inference.gateway.routing.table import RoutingTable
from tests.gateway.routing.groups import group, replicas
from tests.gateway.routing.test_http import Fleet, entry
from tests.gateway.serving import serving, until


async def test_copies_are_counted_and_go_on_over_a_reload() -> None:
    fleet = Fleet(entry(version="v1"), entry(version="v2", shadow=1.0))
    fleet["fake@v2"].script = FakeScript(fail_after=1)
    async with fleet.served() as service:
        router = service.app.state.gateway.router
        for _ in range(3):
            await service.chat()
        [mirror] = router.table.groups["fake"].mirrors
        await until(lambda: mirror.num_failed == 3)
        figures = await service.metrics()
        assert 'shadow_copies_total{model="fake",outcome="copied",version="v2"} 3.0' in figures
        assert 'shadow_copies_total{model="fake",outcome="failed",version="v2"} 3.0' in figures
        fleet["fake@v2"].script = FakeScript(hang_after=0)
        router.replace(fleet.table)
        await asyncio.gather(*(service.chat() for _ in range(10)))
        figures = await service.metrics()
        assert 'shadow_copies_total{model="fake",outcome="copied",version="v2"} 11.0' in figures  # 8 run at once
        assert 'shadow_copies_total{model="fake",outcome="dropped",version="v2"} 2.0' in figures


async def test_comparisons_are_counted() -> None:
    rules = {"agreement": {"sample": 1, "min_samples": 1}}
    fleet = Fleet(entry(tier="golden", precision="float32"), entry(tier="int8", precision="int8", routing=rules))
    async with fleet.served() as service:
        shadowing = service.app.state.gateway.router.table.groups["fake"].shadowing
        await service.chat(service_tier="int8", temperature=0)
        await until(lambda: shadowing.num_replayed == 1)
        assert 'tier_comparisons_total{model="fake",outcome="replayed"} 1.0' in await service.metrics()


async def test_what_is_loaded() -> None:
    async def wake() -> None: ...

    late = Replica("late", hold(FakeEngine("late"), state="unloaded", wake=wake))
    table = RoutingTable(
        [
            group(Deployment(replicas("chat#0", "chat#1"))),
            group(Deployment((late,)), name="late"),
            group(Deployment(replicas("one")), name="one"),
        ]
    )
    async with serving(router=Router(table)) as service:
        figures = [line for line in (await service.metrics()).splitlines() if "replica_loaded{" in line]
    assert figures == [
        'llm_inference_replica_loaded{model="chat",replica="chat#0"} 1.0',
        'llm_inference_replica_loaded{model="chat",replica="chat#1"} 1.0',
        'llm_inference_replica_loaded{model="late",replica="late"} 0.0',
    ]
