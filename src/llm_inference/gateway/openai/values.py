"""Checks of request fields that are more than one scalar: stop, logit_bias, token ids, prompts.

Each takes the decoded JSON value and the field's name and returns it in the engine's form, or raises
`InvalidRequestError` with that name in `param`. Booleans are never numbers here. What needs a model (its vocabulary,
its context) is checked in `sampling.py`, once the model is known.
"""

from __future__ import annotations

from typing import Any

from llm_inference.engine.types import LogitsProcessorCall
from llm_inference.errors import InvalidRequestError

MAX_STOPS = 16
MAX_STOP_CHARS = 512
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIASES = 1024
MAX_PROMPTS = 1024
#: Of one embeddings request, as OpenAI has it.
MAX_INPUTS = 2048
#: Logits processors are code of the operator's choice; more than these is a mistake.
MAX_LOGITS_PROCESSORS = 8
#: Token ids are 32-bit everywhere below; a model's own vocabulary is far smaller.
MAX_TOKEN_ID = 2**31 - 1

_INTEGERS = {int}


def fail(param: str, message: str) -> InvalidRequestError:
    """The error to raise: every message starts with the name of its field."""
    return InvalidRequestError(f"{param}: {message}", param=param)


def stop_strings(value: Any, field: str = "stop") -> tuple[str, ...]:
    """A string or a list of them → tuple. An empty list means none."""
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise fail(field, "must be a string or a list of strings.")
    if len(stops) > MAX_STOPS:
        raise fail(field, f"holds {len(stops)} strings; the limit is {MAX_STOPS}.")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise fail(field, "every stop sequence must be a non-empty string.")
        if len(stop) > MAX_STOP_CHARS:
            raise fail(field, f"a stop sequence has {len(stop)} characters; the limit is {MAX_STOP_CHARS}.")
    return tuple(stops)


def token_ids(value: Any, field: str) -> tuple[int, ...]:
    """A list of token ids, possibly empty → tuple."""
    if not isinstance(value, list) or not set(map(type, value)) <= _INTEGERS:
        raise fail(field, "must be a list of integers (token ids).")
    check_range(value, field, None)
    return tuple(value)


def stop_token_ids(value: Any) -> tuple[int, ...]:
    if isinstance(value, list) and len(value) > MAX_STOP_TOKEN_IDS:
        raise fail("stop_token_ids", f"holds {len(value)} ids; the limit is {MAX_STOP_TOKEN_IDS}.")
    return token_ids(value, "stop_token_ids")


def check_range(ids: list[int] | tuple[int, ...], field: str, vocab_size: int | None) -> None:
    """Every id within the vocabulary, as far as its size is known. Raises `InvalidRequestError`."""
    if not ids:
        return
    top = MAX_TOKEN_ID if vocab_size is None else vocab_size - 1
    low, high = min(ids), max(ids)
    if low < 0 or high > top:
        wrong = low if low < 0 else high
        raise fail(field, f"token id {wrong} is outside the vocabulary: ids go from 0 to {top}.")


def logit_bias(value: Any) -> dict[int, float]:
    """`{"token id": bias}`, keys as JSON must spell them."""
    if not isinstance(value, dict):
        raise fail("logit_bias", "must be an object that maps token ids to numbers from -100 to 100.")
    if len(value) > MAX_LOGIT_BIASES:
        raise fail("logit_bias", f"holds {len(value)} entries; the limit is {MAX_LOGIT_BIASES}.")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        # ASCII digits only: int() would also take "1_0", " 7" and digits of other scripts.
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise fail("logit_bias", f"the key {key[:40]!r} is not a token id.")
        # The comparison is False for NaN, too.
        if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not -100 <= bias <= 100:
            raise fail("logit_bias", f"the bias of token {key} must be a number from -100 to 100.")
        biases[int(key)] = float(bias)
    check_range(list(biases), "logit_bias", None)
    return biases


def prompts(value: Any, field: str = "prompt", limit: int = MAX_PROMPTS) -> tuple[str | tuple[int, ...], ...]:
    """The four forms of `prompt`, as one prompt per entry. Nothing empty: a model needs something to go on from."""
    if isinstance(value, str):
        return (_text(value, field),)
    if not isinstance(value, list) or not value:
        raise fail(field, "must be a non-empty string, list of strings, list of token ids or list of such lists.")
    kinds = set(map(type, value))
    if kinds == _INTEGERS:
        return (token_ids(value, field),)
    if len(value) > limit:
        raise fail(field, f"holds {len(value)} prompts; the limit is {limit}.")
    if kinds == {str}:
        return tuple(_text(text, field) for text in value)
    if kinds == {list}:
        if not all(value):
            raise fail(field, "holds an empty list of token ids.")
        return tuple(token_ids(ids, field) for ids in value)
    raise fail(field, "must hold only strings, only integers (token ids), or only lists of integers.")


def logits_processors(value: Any) -> tuple[LogitsProcessorCall, ...]:
    """`[{"name": …, "args": {…}}]`. Whether there is such a processor is the engine's to say."""
    field = "logits_processors"
    if not isinstance(value, list):
        raise fail(field, 'must be a list of objects such as {"name": "…", "args": {}}.')
    if len(value) > MAX_LOGITS_PROCESSORS:
        raise fail(field, f"holds {len(value)} processors; the limit is {MAX_LOGITS_PROCESSORS}.")
    calls: list[LogitsProcessorCall] = []
    for place, item in enumerate(value):
        path = f"{field}[{place}]"
        if not isinstance(item, dict) or not set(item) <= {"name", "args"}:
            raise fail(path, "must be an object with a name and, if it takes any, args.")
        name, args = item.get("name"), item.get("args", {})
        if not isinstance(name, str) or not 0 < len(name) <= 128:
            raise fail(f"{path}.name", "must be the name of a logits processor, of 1 to 128 characters.")
        if not isinstance(args, dict):
            raise fail(f"{path}.args", "must be an object.")
        calls.append(LogitsProcessorCall(name, args))
    return tuple(calls)


def texts(value: Any, field: str) -> tuple[str, ...]:
    """A non-empty list of non-empty strings → tuple."""
    if not isinstance(value, list) or not value or set(map(type, value)) != {str}:
        raise fail(field, "must be a non-empty list of strings.")
    return tuple(_text(text, field) for text in value)


def _text(text: str, field: str) -> str:
    if not text:
        raise fail(field, "is empty; give the model at least one token to go on from.")
    return text
