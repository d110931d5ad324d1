"""The beginning of a prompt as bytes, for sending prompts that begin alike to the same replica."""

from __future__ import annotations

from array import array
from typing import Any

from llm_inference.engine.types import EmbedRequest, GenerateRequest, Prompt

#: Tokens of four bytes of text each, as elsewhere in guesses.
_BYTES_PER_TOKEN = 4


def prefix_of(work: GenerateRequest | EmbedRequest, num_bytes: int) -> bytes:
    """At most `num_bytes` of the prompt's beginning, and its cache salt: other salts share no cache.

    Of a chat everything up to the first thing that a user says, so that all turns of a conversation begin alike.
    """
    salt = (work.cache_salt or "").encode()
    prompt = work.inputs[0] if isinstance(work, EmbedRequest) else work.prompt
    return salt + b"\0" + _beginning(prompt, num_bytes)


def _beginning(prompt: Prompt, num_bytes: int) -> bytes:
    if isinstance(prompt, str):
        return prompt[:num_bytes].encode("utf-8", "surrogatepass")[:num_bytes]
    if isinstance(prompt, tuple):
        return array("q", prompt[: -(-num_bytes // _BYTES_PER_TOKEN)]).tobytes()
    parts: list[str] = []
    size = 0
    for tool in prompt.tools:
        size += _add(parts, tool, num_bytes - size)
    for message in prompt.messages:
        if size >= num_bytes:
            break
        size += _add(parts, message, num_bytes - size)
        if message.get("role") == "user":
            break
    return "\0".join(parts).encode("utf-8", "surrogatepass")[:num_bytes]


def _add(parts: list[str], value: Any, room: int) -> int:
    """Append the texts in a JSON value, up to about `room` characters; how many they were."""
    if room <= 0:
        return 0
    if isinstance(value, str):
        parts.append(value[:room])
        return min(len(value), room)
    added = 0
    if isinstance(value, dict):
        value = [item for pair in value.items() for item in pair]
    if isinstance(value, (list, tuple)):
        for item in value:
            added += _add(parts, item, room - added)
    return added
