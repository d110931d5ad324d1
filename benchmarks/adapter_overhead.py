"""What an engine behind HTTP adds to a stream: 64 chunks at concurrency 1, through a gateway and `OpenAIEngine`.

The same scripted engine is read directly and over the loopback interface; the difference is printed, in milliseconds
for a whole stream. The aim is under 10 ms. Run it on an idle machine.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import uvicorn
import uvloop
from prometheus_client import CollectorRegistry

from llm_inference.adapters.openai import create
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.fake import FakeEngine, FakeScript
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import GenerateRequest, SamplingParams
from llm_inference.gateway.app import create_app
from llm_inference.gateway.settings import GatewaySettings

CHUNKS = 64
ROUNDS = 50


async def stream_ms(engine: Engine) -> float:
    """The median time of one stream."""
    times = []
    for number in range(ROUNDS):
        request = GenerateRequest(
            request_id=str(number), model="fake", prompt="x", sampling=SamplingParams(max_tokens=80)
        )
        begun = time.perf_counter()
        texts = [delta.text async for delta in engine.generate(request)]
        times.append((time.perf_counter() - begun) * 1000)
        assert len("".join(texts)) == CHUNKS
    return statistics.median(times)


async def main() -> None:
    fake = FakeEngine(script=FakeScript(answers=["a" * CHUNKS]))
    app = create_app({"fake": fake}, GatewaySettings(), registry=CollectorRegistry())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, ws="none", lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    engine = create(ModelConfig(name="fake", model="fake", engine="openai", url=url), EngineContext(run_dir=Path()))
    await engine.start()
    direct, behind = await stream_ms(fake), await stream_ms(engine)
    print(f"{CHUNKS} chunks: direct {direct:.2f} ms, over HTTP {behind:.2f} ms, added {behind - direct:.2f} ms")
    await engine.stop(0)
    server.should_exit = True
    await task


if __name__ == "__main__":
    uvloop.run(main())
