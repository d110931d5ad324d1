"""For every request field that an engine's table speaks of: a request that asks for it, and what then must be seen.

`check(probe)` looks at the reply of a request with the field; what the same request says without is at hand. Where no
model is behind the engine only the reply's shape counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.conformance.client import CHAT_PATH, COMPLETION_PATH, QUESTION, TEXT, content
from tests.gateway.serving import Reply

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@dataclass(frozen=True)
class Seen:
    """`plain`: the reply to the same request without the field. `again`: to the very same request."""

    reply: Reply
    plain: Reply | None = None
    again: Reply | None = None

    @property
    def text(self) -> str:
        return content(self.reply)

    @property
    def num_tokens(self) -> int:
        return int(self.reply.json["usage"]["completion_tokens"])

    @property
    def choice(self) -> Mapping[str, Any]:
        choice: Mapping[str, Any] = self.reply.json["choices"][0]
        return choice


Check = Callable[[Seen], bool]


@dataclass(frozen=True)
class Probe:
    """`others`: fields that must stand beside it; one of them may be the one that is refused."""

    path: str
    value: Any
    check: Check = lambda seen: True
    others: Mapping[str, Any] = field(default_factory=dict)
    #: The value for an engine whose tokens are bytes.
    for_bytes: Any = None
    #: What `check` compares with.
    beside: Literal["plain", "again"] | None = None
    #: Sent only where the engine takes it: a model whose template shows no tools calls them when it must.
    where_taken: Mapping[str, Any] = field(default_factory=dict)


def _completion(value: Any, check: Check = lambda seen: True, **others: Any) -> Probe:
    return Probe(COMPLETION_PATH, value, check, others)


def _chat(value: Any, check: Check = lambda seen: True, **others: Any) -> Probe:
    return Probe(CHAT_PATH, value, check, others)


def _against(value: Any, check: Check, **others: Any) -> Probe:
    """Compared with a completion without the field."""
    return Probe(COMPLETION_PATH, value, check, others, beside="plain")


def _same(seen: Seen) -> bool:
    return seen.text == _plain(seen)


def _differs(seen: Seen) -> bool:
    return seen.text != _plain(seen)


def _plain(seen: Seen) -> str:
    assert seen.plain is not None
    return content(seen.plain)


def _repeats(seen: Seen) -> bool:
    assert seen.again is not None
    return seen.text == content(seen.again)


def _json_like_schema(seen: Seen) -> bool:
    value = json.loads(seen.text)
    return set(value) == {"n"} and isinstance(value["n"], int)


#: What the default model says of TEXT begins with these tokens: " Paris", ".".
PARIS, BLUE = 7042, 4461
_REPEATING = {"prompt": "one two one two one two one two one two one two", "max_tokens": 24}

PROBES: dict[str, Probe] = {
    "top_k": _completion(1, lambda seen: "Paris" in seen.text, temperature=1.0),
    "min_p": _completion(0.99, lambda seen: "Paris" in seen.text, temperature=1.0),
    "seed": Probe(COMPLETION_PATH, 7, _repeats, {"temperature": 1.0, "max_tokens": 16}, beside="again"),
    "logprobs": _completion(1, lambda seen: len(seen.choice["logprobs"]["tokens"]) == seen.num_tokens),
    "top_logprobs": _chat(
        2, lambda seen: len(seen.choice["logprobs"]["content"][0]["top_logprobs"]) == 2, logprobs=True
    ),
    "echo": _against(True, lambda seen: seen.text == TEXT + _plain(seen)),
    "n": _completion(2, lambda seen: len(seen.reply.json["choices"]) == 2),
    "best_of": _completion(2, lambda seen: len(seen.reply.json["choices"]) == 1, temperature=1.0),
    "frequency_penalty": _against(2.0, _differs, **_REPEATING),
    "presence_penalty": _against(2.0, _differs, **_REPEATING),
    "repetition_penalty": _against(5.0, _differs, **_REPEATING),
    "logit_bias": Probe(
        CHAT_PATH, {str(BLUE): 100}, lambda seen: set(seen.text.split()) == {"blue"}, for_bytes={"65": 1}
    ),
    "min_tokens": _chat(24, lambda seen: seen.num_tokens >= 24, max_tokens=32),  # it has said all after eight
    "stop_token_ids": Probe(
        COMPLETION_PATH,
        [PARIS],
        lambda seen: seen.choice["finish_reason"] == "stop" and "Paris" not in seen.text,
        for_bytes=[65],
    ),
    "ignore_eos": _chat(True, lambda seen: seen.num_tokens == 24, max_tokens=24),
    "forced_eos_token_id": _completion(2),
    "tools": Probe(CHAT_PATH, [TOOL], others={"max_tokens": 96}, where_taken={"tool_choice": "required"}),
    "tool_choice": _chat(
        {"type": "function", "function": {"name": "get_weather"}},
        lambda seen: seen.choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather",
        tools=[TOOL],
        max_tokens=96,
    ),
    "parallel_tool_calls": Probe(
        CHAT_PATH, False, others={"tools": [TOOL], "max_tokens": 96}, where_taken={"tool_choice": "required"}
    ),
    "response_format": _chat(
        {"type": "json_schema", "json_schema": {"name": "count", "schema": SCHEMA}}, _json_like_schema, max_tokens=96
    ),
    "structured_outputs": _chat({"choice": ["red", "blue"]}, lambda seen: seen.text in ("red", "blue")),
    "num_beams": _completion(2),
    "length_penalty": _completion(2.0, num_beams=2),
    "early_stopping": _completion(True, num_beams=2),
    "logits_processors": _completion([{"name": "none-of-this-name"}]),
    "cache_salt": _against("salt", _same),
    "priority": _against(1, _same),
    "chat_template_kwargs": _chat({"enable_thinking": False}),
    "continue_final_message": _chat(
        True,
        lambda seen: "Paris" in seen.text and not seen.text.startswith("The capital"),
        add_generation_prompt=False,
        messages=[{"role": "user", "content": QUESTION}, {"role": "assistant", "content": TEXT}],
    ),
    "add_generation_prompt": _chat(False),
    "return_token_ids": _completion(True, lambda seen: len(seen.choice["token_ids"]) == seen.num_tokens),
    "skip_special_tokens": _chat(False, lambda seen: "Paris" in seen.text, max_tokens=32),
    "include_stop_str_in_output": _completion(True, lambda seen: seen.text.endswith("Paris"), stop=["Paris"]),
    "reasoning_effort": _chat("low"),
    "add_special_tokens": _completion(False),
}
