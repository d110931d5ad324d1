from __future__ import annotations

from typing import Any

import pytest

from llm_inference.errors import ConfigError, EngineError
from llm_inference.tools.compare import http_target
from llm_inference.tools.compare.http_target import open_http
from llm_inference.tools.compare.measured import Outcome, measure
from llm_inference.tools.compare.workloads import Request, Workload, make_suite
from tests.tools.bench.scripted import Script, Scripted, scripted


@pytest.fixture(autouse=True)
def no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_target, "_SETTLE_S", 0.01)


class _Words:
    """A tokenizer for the scripted server's answers: a letter is a token."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]


def request(max_tokens: int = 4) -> Request:
    return Request(text="one two", token_ids=(1, 2), num_tokens=2, max_tokens=max_tokens)


def workload(count: int = 4, late: int = 0, **fields: Any) -> Workload:
    return Workload(
        name="W",
        title="a workload",
        requests=tuple(request(**fields) for _ in range(count)),
        concurrency=2,
        late=tuple(request(1) for _ in range(late)),
    )


async def run(server: Scripted, work: Workload, limit_s: float = 60) -> Outcome:
    async with open_http(server.url, model=None, tokenizer=_Words()) as (target, _, _):  # type: ignore[arg-type]
        return await target.run(work, limit_s)


async def test_answers_are_counted_twice() -> None:
    async with scripted(Script()) as server:
        outcome = await run(server, workload())
    assert [one.output_tokens for one in outcome.timelines] == [4] * 4
    assert outcome.text_tokens == 16
    assert measure(outcome).complete
    body = server.bodies[-1]
    assert (body["prompt"], body["temperature"], body["ignore_eos"], body["max_tokens"]) == ([1, 2], 0, True, 4)


async def test_text_where_ids_are_refused() -> None:
    async with (
        scripted(Script(token_ids=False, refused={"ignore_eos": "what is ignore_eos?"})) as server,
        open_http(server.url, model="m", tokenizer=_Words()) as (target, _, notes),  # type: ignore[arg-type]
    ):
        await target.run(workload(1), 10)
    assert server.bodies[-1]["prompt"] == "one two"
    assert "prompts are sent as text" in notes
    assert any("ignore_eos" in note for note in notes)


async def test_what_runs_too_long_is_cut_off() -> None:
    async with scripted(Script(delay_s=0.05)) as server:
        result = measure(await run(server, workload(2, max_tokens=400), limit_s=0.5))
    assert (result.num_cut, result.num_failed) == (2, 0)
    assert 2 <= result.output_tokens < 40
    assert result.duration_s >= 0.5


async def test_late_prompts_end_the_streams() -> None:
    async with scripted(Script(delay_s=0.01)) as server:
        outcome = await run(server, workload(3, late=2, max_tokens=10_000))
    assert len(outcome.late) == 2
    assert all(one.ok for one in outcome.late)
    assert [one.failure.kind for one in outcome.timelines if one.failure is not None] == ["cut"] * 3
    assert outcome.late[0].sent_s >= max(one.arrivals[7].time_s for one in outcome.timelines)
    assert measure(outcome).doubts == ()


async def test_late_prompts_that_never_get_their_turn() -> None:
    async with (
        scripted(Script(first_delay_s=5)) as server,
        open_http(server.url, model="m", tokenizer=None) as (target, _, _),
    ):
        with pytest.raises(EngineError, match=r"no long prompt was sent within 0\.2 s"):
            await target.run(workload(1, late=1, max_tokens=100), 0.2)


async def test_words_of_another_server() -> None:
    def rewrite(body: dict[str, Any], max_tokens: int) -> dict[str, Any]:
        return {**body, "least": max_tokens}

    async with (
        scripted(Script()) as server,
        open_http(server.url, model="m", tokenizer=None, rewrite=rewrite) as (target, _, _),
    ):
        await target.run(workload(1), 10)
    assert server.bodies[-1]["least"] == 4


async def test_a_warm_up_that_fails_is_an_error() -> None:
    async with (
        scripted(Script(mishaps={1: "http_503"})) as server,
        open_http(server.url, model="m", tokenizer=None) as (target, _, _),
    ):
        with pytest.raises(EngineError, match="warming up fails: http_503"):
            await target.warm_up(make_suite(None, ["W1"], quick=True).warmup)


async def test_nobody_there() -> None:
    with pytest.raises(ConfigError, match="lists no models"):
        async with open_http("http://127.0.0.1:1", model=None, tokenizer=None):
            pass
