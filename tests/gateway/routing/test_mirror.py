from __future__ import annotations

import random

from llm_inference.engine.fake import FakeScript
from llm_inference.engine.types import GenerateRequest
from llm_inference.gateway.routing.mirror import Mirror
from tests.gateway.routing.groups import fake, replicas
from tests.gateway.serving import until

REQUEST = GenerateRequest(request_id="r", model="chat", prompt="hello")


async def test_a_copy_that_hangs_gives_its_place_back() -> None:
    (replica,) = replicas("shadow", script=FakeScript(hang_after=1))
    mirror = Mirror((replica,), 1.0, random.Random(1), max_copies=1, timeout_s=0.02)
    mirror.offer(REQUEST)
    mirror.offer(REQUEST)
    assert (mirror.num_copied, mirror.num_dropped) == (1, 1)
    await until(lambda: mirror.num_failed == 1)
    assert fake(replica).aborted == ["r-shadow"]
    assert (replica.in_flight, replica.num_failures) == (0, 1)
    mirror.offer(REQUEST)
    assert mirror.num_copied == 2
    await mirror.close()


async def test_closing_ends_what_runs() -> None:
    (replica,) = replicas("shadow", script=FakeScript(hang_after=1))
    mirror = Mirror((replica,), 1.0, random.Random(1))
    mirror.offer(REQUEST)
    await until(lambda: replica.in_flight == 1)
    await mirror.close()
    assert replica.in_flight == 0
    assert mirror.num_failed == 0
