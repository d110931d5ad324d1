from __future__ import annotations

import pytest

from llm_inference.engine.byte_tokens import BOS_TOKEN_ID, EOS_TOKEN_ID, count, decode, encode, token_bytes, token_text
from llm_inference.engine.types import ChatPrompt


@pytest.mark.parametrize("text", ["", "plain", "Grüße, 世界 👋🏽!", "\x00\n\t"])
def test_tokens_are_reversible(text: str) -> None:
    for special in (True, False):
        ids = encode(text, add_special_tokens=special)
        assert (ids[:1] == (BOS_TOKEN_ID,)) == special
        assert decode(ids) == text
        assert len(ids) == count(text, add_special_tokens=special)
    chat = ChatPrompt(messages=({"role": "user", "content": text},))
    assert decode(encode(chat)) == f"user: {text}\n"
    assert count(chat) == len(encode(chat))
    assert (encode((1, 2)), count((1, 2))) == ((1, 2), 2)


def test_single_tokens() -> None:
    assert (token_text(97), token_bytes(97)) == ("a", b"a")
    assert (token_text(0xC3), token_bytes(0xC3)) == ("\ufffd", b"\xc3")
    assert (token_text(EOS_TOKEN_ID), token_bytes(EOS_TOKEN_ID)) == ("", b"")
