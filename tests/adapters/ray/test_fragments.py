from __future__ import annotations

import msgspec
import pytest

from llm_inference.adapters.ray.fragments import Failure, Fragment
from llm_inference.engine.types import Delta
from llm_inference.errors import (
    ContextLengthError,
    EngineError,
    InvalidRequestError,
    LLMInferenceError,
    OverloadedError,
)


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError("no", param="messages[0].content"),
        ContextLengthError("long", param="prompt"),
        OverloadedError("full", retry_after_s=3.0),
        EngineError("gone", code="engine_restarting", detail="at http://10.0.0.5:8000"),
    ],
)
def test_an_error_crosses_with_all_that_clients_and_the_log_see_of_it(error: LLMInferenceError) -> None:
    wire = msgspec.msgpack.encode(Fragment(failure=Failure.of(error)))
    failure = msgspec.msgpack.decode(wire, type=Fragment).failure
    assert failure is not None
    back = failure.as_error()
    assert type(back) is type(error)
    assert (back.message, back.detail, back.param, back.public_code, back.retry_after_s, back.status) == (
        error.message,
        error.detail,
        error.param,
        error.public_code,
        error.retry_after_s,
        error.status,
    )


def test_a_defect_becomes_an_engine_error() -> None:
    back = Failure.of(ZeroDivisionError("division by zero")).as_error()
    assert type(back) is EngineError
    assert back.message == "the replica failed: ZeroDivisionError: division by zero"


@pytest.mark.parametrize("kind", ["Delta", "annotations", "nothing like it"])
def test_a_name_that_is_no_error_is_an_engine_error(kind: str) -> None:
    assert type(Failure(kind, "?").as_error()) is EngineError


def test_deltas_cross_as_they_are() -> None:
    deltas = (Delta(text="a", token_ids=(1,)), Delta(index=1, finish_reason="stop"))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Fragment(deltas)), type=Fragment) == Fragment(deltas)
