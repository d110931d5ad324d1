from __future__ import annotations

from collections.abc import Sequence as Rows
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch

from llm_inference.engine.types import LogitsProcessorCall
from llm_inference.errors import EngineError, InvalidRequestError
from llm_inference.native import logits_processors
from llm_inference.native.logits_processors import GROUP, LogitsProcessors, check_names
from llm_inference.native.request import Sequence
from llm_inference.native.sampler import Sampler
from tests.native.cores import make_core, make_request, run
from tests.native.tiny_models import CPU, TinyModel, save_tiny


class Only:
    """Forbids every token but one."""

    def __init__(self, token: int, *, offset: int = 0) -> None:
        if token < 0:
            raise ValueError("token must not be negative")
        self.token = token + offset

    def __call__(self, token_ids: Rows[int], num_prompt_tokens: int, logits: torch.Tensor) -> None:
        best = logits[self.token].clone()
        logits.fill_(float("-inf"))
        logits[self.token] = best


class Counting:
    """Wants the token whose id is the number of tokens generated so far. Remembers its own calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, token_ids: Rows[int], num_prompt_tokens: int, logits: torch.Tensor) -> None:
        self.calls.append(len(token_ids))
        logits[len(token_ids) - num_prompt_tokens] += 1000


class Nothing:
    def __call__(self, token_ids: Rows[int], num_prompt_tokens: int, logits: torch.Tensor) -> None:
        logits.fill_(float("-inf"))


class Broken:
    def __call__(self, token_ids: Rows[int], num_prompt_tokens: int, logits: torch.Tensor) -> None:
        raise KeyError("lost")


@pytest.fixture
def known() -> dict[str, EntryPoint]:
    here = f"{__name__}:"
    return {
        **{
            name: EntryPoint(name, here + kind, GROUP)
            for name, kind in (("only", "Only"), ("counting", "Counting"), ("nothing", "Nothing"), ("broken", "Broken"))
        },
        "absent": EntryPoint("absent", "no_such_package:X", GROUP),
    }


def call(name: str, **args: Any) -> tuple[LogitsProcessorCall, ...]:
    return (LogitsProcessorCall(name, args),)


def sequence(*calls: LogitsProcessorCall, name: str = "r") -> Sequence:
    return Sequence(make_request(name, [3, 4], logits_processors=calls), 0, [3, 4], 0.0, 2)


def test_rows_of_others_are_left_alone(known: dict[str, EntryPoint]) -> None:
    processors = LogitsProcessors(known)
    logits = torch.randn(3, 10)
    before = logits.clone()
    rows = [sequence(), sequence(*call("only", token=7), name="a"), sequence()]
    assert processors.apply(logits, rows) == {}
    assert logits[1].argmax() == 7
    assert torch.equal(logits[0], before[0])
    assert torch.equal(logits[2], before[2])


def test_processors_act_in_the_order_given_and_are_made_once(known: dict[str, EntryPoint]) -> None:
    processors = LogitsProcessors(known)
    one = sequence(*call("counting"), *call("only", token=5))
    for _ in range(3):
        logits = torch.zeros(1, 10)
        processors.apply(logits, [one])
        assert logits[0].argmax() == 5
    counting = processors._live[one][0]
    assert isinstance(counting, Counting)
    assert counting.calls == [2, 2, 2]
    processors.forget(one)
    processors.forget(one)
    assert processors._live == {}


@pytest.mark.parametrize(
    ("name", "message"),
    [("nothing", "no token is left that could follow"), ("broken", "KeyError: 'lost'")],
)
def test_a_rule_that_fails_is_the_error_of_its_row(known: dict[str, EntryPoint], name: str, message: str) -> None:
    logits = torch.randn(2, 10)
    failures = LogitsProcessors(known).apply(logits, [sequence(), sequence(*call(name), name="bad")])
    assert list(failures) == [1]
    assert message in failures[1].message
    assert f"({name})" in failures[1].message
    sampler = Sampler(10, CPU, processors=LogitsProcessors(known))
    with pytest.raises(EngineError, match=message):
        sampler.sample(torch.randn(1, 10), [sequence(*call(name))])


def test_wrong_names_and_arguments_are_refused(known: dict[str, EntryPoint]) -> None:
    processors = LogitsProcessors(known)
    processors.check(call("only", token=3))
    with pytest.raises(InvalidRequestError, match="no logits processor 'onyl'; known are absent, broken, counting"):
        processors.check(call("onyl"))
    with pytest.raises(InvalidRequestError, match="only refuses them: token must not be negative") as caught:
        processors.check((*call("counting"), *call("only", token=-1)))
    assert caught.value.param == "logits_processors[1].args"
    with pytest.raises(InvalidRequestError, match=r"only refuses them: .*unexpected keyword argument 'size'"):
        processors.check(call("only", size=1))
    with pytest.raises(EngineError, match="'absent' cannot be imported"):
        processors.check(call("absent"))
    with pytest.raises(InvalidRequestError, match="none is installed here"):
        check_names(call("only"), ())


def test_installed_ones_are_found_by_their_group(monkeypatch: pytest.MonkeyPatch, known: dict[str, EntryPoint]) -> None:
    asked: list[str] = []

    def entry_points(group: str) -> list[EntryPoint]:
        asked.append(group)
        return list(known.values())

    monkeypatch.setattr(logits_processors, "entry_points", entry_points)
    assert set(logits_processors.known_processors()) == set(known)
    assert asked == ["llm_inference.logits_processors"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def test_in_the_core_beside_others_and_through_preemption(model: TinyModel, known: dict[str, EntryPoint]) -> None:
    core = make_core(model, num_blocks=12, max_num_batched_tokens=20)
    core._sampler.processors = LogitsProcessors(known)
    calls = call("counting")
    requests = [
        make_request("drawn", range(3, 20), temperature=1.0, n=2, logits_processors=calls),
        make_request("greedy", range(4, 20), logits_processors=calls),
        make_request("free", range(5, 20)),
    ]
    outcomes = run(core, requests)
    assert core.stats().num_preemptions > 0
    for choice in (*outcomes["drawn"], *outcomes["greedy"]):
        assert choice.token_ids == list(range(12))
    assert outcomes["free"][0].token_ids == run(make_core(model), [requests[2]])["free"][0].token_ids
    assert core._sampler.processors._live == {}
    with pytest.raises(InvalidRequestError, match="only refuses them"):
        core.add(make_request("wrong", [3], logits_processors=call("only")))
    assert not core.has_work
    core.add(make_request("dead", [3, 4], logits_processors=call("nothing")))
    assert [failure.request_id for failure in core.step().failures] == ["dead"]
