from __future__ import annotations

import asyncio
import time

from llm_inference.tools.bench.loop_lag import watched_loop


async def test_a_blocked_loop_shows() -> None:
    async with watched_loop() as lag:
        await asyncio.sleep(0.03)
        time.sleep(0.08)
        await asyncio.sleep(0.03)
        busy_until = time.process_time() + 0.02
        while time.process_time() < busy_until:
            pass
        assert lag.cpu_share > 0
    assert max(lag.lags_s) > 0.05
    assert min(lag.lags_s) >= 0
    count = len(lag.lags_s)
    await asyncio.sleep(0.03)
    assert len(lag.lags_s) == count  # it has stopped
