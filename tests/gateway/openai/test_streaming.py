from __future__ import annotations

import pytest

from llm_inference.errors import InvalidRequestError
from llm_inference.gateway.openai.fields import StreamOptions
from llm_inference.gateway.openai.streaming import check_stream


def test_options() -> None:
    assert check_stream(False, None) == StreamOptions()
    options = StreamOptions(include_usage=True, continuous_usage_stats=True, include_obfuscation=False)
    assert check_stream(True, options) is options


@pytest.mark.parametrize(
    ("stream", "options", "param"),
    [
        (False, StreamOptions(include_usage=True), "stream_options"),
        (True, StreamOptions(include_obfuscation=True), "stream_options.include_obfuscation"),
        (True, StreamOptions(continuous_usage_stats=True), "stream_options.continuous_usage_stats"),
    ],
)
def test_options_without_effect(stream: bool, options: StreamOptions, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_stream(stream, options)
    assert caught.value.param == param
