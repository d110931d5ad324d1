"""The rules of `stream` and `stream_options` that chat and completions share."""

from __future__ import annotations

from llm_inference.gateway.openai.fields import StreamOptions
from llm_inference.gateway.openai.values import fail

_DEFAULTS = StreamOptions()


def check_stream(stream: bool, options: StreamOptions | None) -> StreamOptions:
    """The options in force. Raises `InvalidRequestError` for those that would have no effect."""
    if options is None:
        return _DEFAULTS
    if not stream:
        raise fail("stream_options", "would have no effect without stream=true.")
    if options.include_obfuscation:
        raise fail("stream_options.include_obfuscation", "this server sends no padding; leave it out or send false.")
    if options.continuous_usage_stats and not options.include_usage:
        raise fail("stream_options.continuous_usage_stats", "would have no effect without include_usage=true.")
    return options
