from __future__ import annotations

import asyncio

import pytest

from llm_inference.errors import NotReadyError, OverloadedError
from llm_inference.gateway.admission import Admission


def test_permits_are_counted_and_given_back() -> None:
    admission = Admission(2)
    with admission.permit(), admission.permit():
        assert admission.in_flight == 2
        with pytest.raises(OverloadedError) as caught, admission.permit():
            pass
        assert caught.value.retry_after_s
        assert admission.in_flight == 2
    with pytest.raises(ZeroDivisionError), admission.permit():
        raise ZeroDivisionError
    assert admission.in_flight == 0
    admission.check()


async def test_drain_refuses_and_waits() -> None:
    admission = Admission(2)
    assert await admission.wait_idle(0)
    with admission.permit():
        admission.begin_drain()
        assert admission.draining
        with pytest.raises(NotReadyError) as caught:
            admission.check()
        assert caught.value.public_code == "shutting_down"
        waiting = asyncio.create_task(admission.wait_idle(5))
        assert not await admission.wait_idle(0.01)
        assert not waiting.done()
    assert await waiting
