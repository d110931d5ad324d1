from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import pytest

from llm_inference.adapters.emulation import fan_out, seed_of, until_stop, with_usage
from llm_inference.engine.types import Delta, GenerateRequest, SamplingParams, Usage
from llm_inference.errors import EngineError


class Source:
    """Deltas that tell whether their reader closed them."""

    def __init__(self, deltas: Sequence[Delta]) -> None:
        self.closed = False
        self._deltas = deltas

    async def run(self) -> AsyncGenerator[Delta, None]:
        try:
            for delta in self._deltas:
                yield delta
        finally:
            self.closed = True


async def test_a_stop_string_ends_one_choice_and_the_other_goes_on() -> None:
    source = Source([
        Delta(text="one ST"), Delta(index=1, text="uno S"), Delta(text="OP two"), Delta(text="three"),
        Delta(index=1, text="i", finish_reason="stop", usage=Usage(3, 9)),
        Delta(text="never read", finish_reason="length"),
    ])  # fmt: skip
    out = [delta async for delta in until_stop(source.run(), ("STOP",), 2)]
    assert "".join(delta.text for delta in out if delta.index == 0) == "one "
    assert "".join(delta.text for delta in out if delta.index == 1) == "uno Si"
    assert [(d.index, d.finish_reason, d.stop_reason) for d in out if d.finish_reason] == [
        (0, "stop", "STOP"),
        (1, "stop", None),
    ]
    assert out[-1].usage == Usage(3, 9)
    assert source.closed


async def test_a_beginning_of_a_stop_string_is_text_at_the_end() -> None:
    source = Source([Delta(text="a ST"), Delta(finish_reason="length")])
    out = [delta async for delta in until_stop(source.run(), ("STOP",), 1)]
    assert [delta.text for delta in out] == ["a ", "ST"]


async def test_usage_is_counted_only_where_it_is_missing() -> None:
    async def count(texts: Sequence[str]) -> Usage:
        return Usage(7, len("".join(texts)))

    plain = Source([Delta(text="abc"), Delta(index=1, text="de", finish_reason="stop"), Delta(finish_reason="stop")])
    out = [delta async for delta in with_usage(plain.run(), 2, count)]
    assert [delta.usage for delta in out] == [None, None, Usage(7, 5)]
    told = Source([Delta(text="abc", finish_reason="stop", usage=Usage(1, 1))])
    assert [delta.usage async for delta in with_usage(told.run(), 1, count)] == [Usage(1, 1)]


async def test_closing_a_fan_out_closes_every_part() -> None:
    sources: list[Source] = []

    def generate(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        sources.append(Source([Delta(text="x")] * 10_000))
        return sources[-1].run()

    request = GenerateRequest(request_id="r", model="m", prompt="p", sampling=SamplingParams(n=3))
    deltas = fan_out(generate, request)
    await anext(deltas)
    await deltas.aclose()
    assert len(sources) == 3
    assert all(source.closed for source in sources)


async def test_a_failing_part_closes_the_others() -> None:
    sources: list[Source] = []

    async def fail() -> AsyncGenerator[Delta, None]:
        yield Delta(text="x")
        raise EngineError("boom")

    def generate(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        if request.request_id == "r-0":
            return fail()
        sources.append(Source([Delta(text="x")] * 10_000))
        return sources[-1].run()

    request = GenerateRequest(request_id="r", model="m", prompt="p", sampling=SamplingParams(n=2))
    with pytest.raises(EngineError, match="boom"):
        [delta async for delta in fan_out(generate, request)]
    assert sources[0].closed


def test_seeds_count_up_within_64_bits() -> None:
    assert [seed_of(7, index) for index in range(3)] == [7, 8, 9]
    assert seed_of(-1, 1) == 0
    assert seed_of(2**63 - 1, 1) == -(2**63)
