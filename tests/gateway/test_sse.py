from __future__ import annotations

from llm_inference.gateway import sse


def test_frames() -> None:
    assert sse.frame(b'{"a":1}') == b'data: {"a":1}\n\n'
    assert sse.frame(b"[DONE]") == sse.DONE
