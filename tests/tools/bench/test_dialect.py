from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from llm_inference.errors import ConfigError, EngineError
from llm_inference.tools.bench.dialect import Dialect, learn
from llm_inference.tools.bench.timeline import Failure, Timeline
from tests.tools.bench.timelines import timeline

FINE = timeline((1.0, 1))


class Server:
    """Refuses a dialect for the first reason in `reasons` that holds."""

    def __init__(self, *reasons: tuple[str, str]) -> None:
        self.reasons = reasons
        self.seen: list[Dialect] = []

    async def __call__(self, dialect: Dialect) -> Timeline:
        self.seen.append(dialect)
        for attribute, message in self.reasons:
            if getattr(dialect, attribute) not in (False, "max_completion_tokens"):
                return failing(Failure("http_400", message, 400))
        return FINE


def failing(failure: Failure) -> Timeline:
    return msgspec.structs.replace(FINE, failure=failure)


def test_the_whole_body() -> None:
    body = Dialect().body("m", "chat", "hi", 7)
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 7,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "ignore_eos": True,
    }
    messages = [{"role": "system", "content": "s"}]
    assert Dialect().body("m", "chat", messages, 7)["messages"] == messages


def test_the_plainest_body() -> None:
    plain = Dialect(ignore_eos=False, usage=False, max_tokens_field="max_completion_tokens")
    assert plain.body("m", "completions", [1, 2], 7) == {
        "model": "m",
        "prompt": [1, 2],
        "max_completion_tokens": 7,
        "temperature": 0,
        "stream": True,
    }


async def test_what_is_taken_is_kept() -> None:
    server = Server()
    assert await learn(server, Dialect()) == (Dialect(), [])
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("attribute", "message", "left"),
    [
        ("ignore_eos", "unknown argument: ignore_eos", Dialect(ignore_eos=False)),
        ("continuous_usage", "stream_options.continuous_usage_stats: extra", Dialect(continuous_usage=False)),
        ("usage", "stream_options is not supported", Dialect(usage=False, continuous_usage=False)),
        ("max_tokens_field", "Use 'max_completion_tokens'", Dialect(max_tokens_field="max_completion_tokens")),
    ],
)
async def test_a_refused_field_is_left_out_and_said(attribute: str, message: str, left: Dialect) -> None:
    dialect, notes = await learn(Server((attribute, message)), Dialect())
    assert dialect == left
    (note,) = notes
    assert "refuses" in note


async def test_several_refusals_one_after_the_other() -> None:
    server = Server(("ignore_eos", "no ignore_eos"), ("continuous_usage", "no continuous_usage_stats"))
    dialect, notes = await learn(server, Dialect())
    assert dialect == Dialect(ignore_eos=False, continuous_usage=False)
    assert (len(notes), len(server.seen)) == (2, 3)


async def test_a_message_that_names_nothing_leaves_out_everything() -> None:
    dialect, notes = await learn(Server(("ignore_eos", "bad request")), Dialect())
    assert dialect == Dialect(ignore_eos=False, usage=False, continuous_usage=False)
    assert "bad request" in notes[0]


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (Failure("http_404", "no such model", 404), ConfigError),
        (Failure("http_401", "no key", 401), ConfigError),
        (Failure("http_400", "bad in every way", 400), ConfigError),
        (Failure("http_500", "it broke", 500), EngineError),
        (Failure("connection", "refused"), EngineError),
        (Failure("error_event", "it broke"), EngineError),
    ],
)
async def test_a_server_that_refuses_the_plainest_request(failure: Failure, error: type[Exception]) -> None:
    async def send(dialect: Dialect) -> Timeline:
        return failing(failure)

    with pytest.raises(error, match=failure.detail):
        await learn(send, replace(Dialect(), ignore_eos=False))


async def test_an_empty_answer_is_an_answer() -> None:
    async def send(dialect: Dialect) -> Any:
        return failing(Failure("empty_answer", "nothing"))

    assert (await learn(send, Dialect()))[0] == Dialect()
