"""The fake engine's tokenizer: the bytes of UTF-8, and two special tokens. Knows no engine and no chat template."""

from __future__ import annotations

from collections.abc import Sequence

from llm_inference.engine.types import ChatPrompt, Prompt

BOS_TOKEN_ID = 256
EOS_TOKEN_ID = 257
VOCAB_SIZE = 258


def encode(prompt: Prompt, *, add_special_tokens: bool = True) -> tuple[int, ...]:
    """Byte tokens. A chat is one line `role: content` per message; only plain text gets the beginning's token."""
    if isinstance(prompt, tuple):
        return prompt
    start = (BOS_TOKEN_ID,) if isinstance(prompt, str) and add_special_tokens else ()
    return start + tuple(_utf8(prompt))


def count(prompt: Prompt, *, add_special_tokens: bool = True) -> int:
    """`len(encode(...))` without making millions of integers of a huge text."""
    if isinstance(prompt, tuple):
        return len(prompt)
    return len(_utf8(prompt)) + (isinstance(prompt, str) and add_special_tokens)


def _utf8(prompt: str | ChatPrompt) -> bytes:
    if isinstance(prompt, str):
        return prompt.encode()
    return "".join(f"{message['role']}: {message['content']}\n" for message in prompt.messages).encode()


def decode(token_ids: Sequence[int]) -> str:
    return bytes(token for token in token_ids if token < 256).decode("utf-8", "replace")


def token_bytes(token: int) -> bytes:
    return bytes([token]) if token < 256 else b""


def token_text(token: int) -> str:
    return token_bytes(token).decode("utf-8", "replace")
