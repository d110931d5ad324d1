from __future__ import annotations

import socket
from typing import Any

import aiohttp
import msgspec
import pytest

from llm_inference.tools.bench.api import Api, Call, ModelCard, open_api
from llm_inference.tools.bench.dialect import Dialect
from llm_inference.tools.bench.settings import BenchSettings
from llm_inference.tools.bench.timeline import Timeline
from tests.tools.bench.scripted import Mishap, Script, scripted


def call(max_tokens: int = 4, prompt: Any = "one two three") -> Call:
    return Call(
        body=msgspec.json.encode(Dialect().body("scripted", "completions", prompt, max_tokens)),
        index=7,
        planned_input_tokens=3,
        max_tokens=max_tokens,
    )


async def streamed(script: Script, **settings: Any) -> Timeline:
    async with scripted(script) as server, opened(server.url, **settings) as api:
        return await api.stream(call())


def opened(url: str, **settings: Any) -> Any:
    return open_api(BenchSettings(url=url, endpoint="completions", **settings))


async def test_a_stream_with_known_delays() -> None:
    one = await streamed(Script(first_delay_s=0.1, delay_s=0.05))
    assert one.failure is None
    assert (one.index, one.planned_input_tokens, one.max_tokens) == (7, 3, 4)
    assert (one.output_tokens, one.input_tokens, one.cached_tokens, one.counting) == (4, 3, 2, "usage")
    assert one.ttft_s is not None
    assert one.tpot_s is not None
    # A busy machine only makes it later.
    assert 0.1 <= one.ttft_s < 2
    assert 0.045 <= one.tpot_s < 1
    assert one.e2el_s >= 0.25
    assert all(gap < 2 for gap in one.gaps_s())
    assert one.scheduled_s == one.sent_s


async def test_tokens_per_chunk_come_from_usage_or_are_chunks() -> None:
    by_usage = await streamed(Script(tokens_per_chunk=3, delay_s=0.02))
    assert [arrival.num_tokens for arrival in by_usage.arrivals] == [3, 1]
    by_chunk = await streamed(Script(tokens_per_chunk=3, delay_s=0.02, usage="final"))
    assert [arrival.num_tokens for arrival in by_chunk.arrivals] == [1, 1]
    assert (by_chunk.counting, by_chunk.output_tokens) == ("chunks", 4)


@pytest.mark.parametrize(
    ("mishap", "kind", "detail"),
    [
        ("http_503", "http_503", "full"),
        ("not_streamed", "not_streamed", "all at once"),
        ("truncate", "truncated", "finish_reason"),
        ("error_event", "error_event", "the engine died"),
        ("malformed", "malformed", "not json"),
        ("drop", "disconnected", ""),
        ("hang", "timeout", "0.2 s"),
        ("empty", "empty_answer", "single token"),
    ],
)
async def test_every_mishap_has_its_kind(mishap: Mishap, kind: str, detail: str) -> None:
    one = await streamed(Script(mishaps={0: mishap}), timeout_s=0.2 if mishap == "hang" else 5.0)
    assert one.failure is not None
    assert one.failure.kind == kind
    assert detail in one.failure.detail
    assert one.failure.status == {"http_503": 503, "not_streamed": 200}.get(mishap)
    assert one.ended_s >= one.sent_s


async def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with opened(url) as api:
            one = await api.stream(call())
            assert one.failure is not None
            assert one.failure.kind == "connection"
            assert await api.version() is None
            assert await api.count_tokens({"prompt": "x"}) is None
            with pytest.raises(aiohttp.ClientError):
                await api.models()


async def test_models_tokens_and_key() -> None:
    async with scripted(Script(tokenizer=True, key="k")) as server:
        async with opened(server.url, api_key="k") as api:
            assert await api.models() == [ModelCard("scripted", 1000)]
            assert await api.count_tokens({"prompt": "one two"}) == 2
            assert await api.count_tokens({"prompt": ""}) is None  # no count that one could use
            assert await api.version() is None
            await api.stream(call())
        assert server.headers[0]["Authorization"] == "Bearer k"
        async with opened(server.url) as api:
            with pytest.raises(aiohttp.ClientResponseError):
                await api.models()


async def test_the_clock_starts_anew_and_connections_are_kept_without_delay() -> None:
    async with scripted() as server, opened(server.url) as api:
        await api.stream(call())
        api.restart_clock()
        one = await api.stream(call(), scheduled_s=-1.0)
        assert 0 <= one.sent_s < 1
        assert one.queue_s == one.sent_s + 1.0
        (option,) = sockets_nodelay(api)
        assert option != 0


def sockets_nodelay(api: Api) -> list[int]:
    """TCP_NODELAY of every idle connection of the session."""
    connector: Any = api._session.connector
    protocols = [entry[0] for idle in connector._conns.values() for entry in idle]
    return [
        protocol.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        for protocol in protocols
    ]
