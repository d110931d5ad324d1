"""From the chunks of one foreign answer to deltas: the place where quirks end. A state machine without connections.

    chunk ──take()──► Delta, Delta, …        end() ──► the deltas that had to wait for the usage

Normalised here: finish reasons (words, objects, ""), choices out of order or without an index, cumulative text,
`reasoning` and `reasoning_content`, tool calls without index, with repeated ids or whole arguments, both formats of
logprobs, a whole answer where a stream was asked for, errors inside a stream. The last open choice's end waits for the
usage, which most servers send after it, so that the last delta carries it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from llm_inference.adapters.frames import decode
from llm_inference.adapters.generate_choice import MAX_COUNT
from llm_inference.adapters.upstream_errors import from_event
from llm_inference.engine.types import Delta, FinishReason, TokenLogprob, ToolCallDelta, Usage
from llm_inference.errors import EngineError

#: Where a server tells no token id.
UNKNOWN_TOKEN_ID = -1

_FINISH: Mapping[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "stop_token": "stop",
    "end_turn": "stop",
    "length": "length",
    "max_tokens": "length",
    "max_length": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "abort": "abort",
    "aborted": "abort",
    "cancelled": "abort",
    "canceled": "abort",
    "error": "error",
}


def finish_reason(value: Any) -> FinishReason | None:
    """Ours, from a word or an object with a `type`; None for null and "". An unknown word is an end like any other."""
    if isinstance(value, dict):
        value = value.get("type")
    if not value:
        return None
    return _FINISH.get(str(value), "stop")


def read_usage(value: Any) -> Usage | None:
    """Ours, from a usage object; None where it has no counts, or wrong ones: they are paid by, and never refunded."""
    if not isinstance(value, dict) or value.get("prompt_tokens") is None:
        return None
    prompt_details, details = value.get("prompt_tokens_details"), value.get("completion_tokens_details")
    counts = (
        value["prompt_tokens"],
        value.get("completion_tokens"),
        prompt_details.get("cached_tokens") if isinstance(prompt_details, dict) else None,
        (details.get("reasoning_tokens") if isinstance(details, dict) else None) or value.get("reasoning_tokens"),
    )
    if not all(count is None or (type(count) is int and 0 <= count <= MAX_COUNT) for count in counts):
        return None
    return Usage(*(count or 0 for count in counts))


class _Text(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    content: str
    role: str | None = None
    reasoning: None = None
    reasoning_content: None = None
    tool_calls: None = None
    function_call: None = None
    refusal: None = None


class _TextChoice(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    delta: _Text
    index: int | None = None
    finish_reason: None = None
    logprobs: None = None
    stop_reason: None = None
    matched_stop: None = None
    token_ids: None = None


class _TextChunk(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A chunk that says nothing but some text, in the words of the servers that are usual. Nulls say nothing."""

    choices: tuple[_TextChoice]
    id: msgspec.Raw = msgspec.Raw()
    object: str | None = None
    created: msgspec.Raw = msgspec.Raw()
    model: msgspec.Raw = msgspec.Raw()
    service_tier: msgspec.Raw = msgspec.Raw()
    system_fingerprint: msgspec.Raw = msgspec.Raw()
    usage: None = None
    prompt_token_ids: None = None


_TEXT_CHUNK = msgspec.json.Decoder(_TextChunk)


@dataclass(slots=True)
class _Choice:
    text: str = ""  # so far; kept only where the server repeats it
    offset: int = 0
    call_ids: list[str] = field(default_factory=list)  # as sent on
    call_places: dict[int | str, int] = field(default_factory=dict)  # the server's index or id → ours
    finished: bool = False


class StreamReading:
    """One answer of `num_choices` choices. `where` names the server in errors."""

    def __init__(self, num_choices: int, *, where: str, cumulative_text: bool = False) -> None:
        self._choices = [_Choice() for _ in range(num_choices)]
        self._where = where
        self._cumulative = cumulative_text
        self._held: Delta | None = None
        self.usage: Usage | None = None

    @property
    def finished(self) -> bool:
        """Every choice has ended; only usage may still come."""
        return all(choice.finished for choice in self._choices)

    def take_event(self, data: bytes) -> list[Delta]:
        """`take` of a chunk that is still JSON. Raises `EngineError` when it is not."""
        plain = None if self._cumulative else self._plain(data)
        return self.take(decode(data, self._where)) if plain is None else [plain]

    def _plain(self, data: bytes) -> Delta | None:
        """The delta of a chunk that is nothing but some text of one choice, as nearly all are; None for any other."""
        try:
            chunk = _TEXT_CHUNK.decode(data)
        except msgspec.DecodeError:
            return None
        choice = chunk.choices[0]
        index = 0 if len(self._choices) == 1 else choice.index
        if index is None or not 0 <= index < len(self._choices) or self._choices[index].finished:
            return None
        return None if chunk.object == "error" else Delta(index=index, text=choice.delta.content)

    def take(self, chunk: Any) -> list[Delta]:
        """The deltas of one chunk. Raises the error that the chunk reports, `EngineError` for what is no chunk."""
        if not isinstance(chunk, dict):
            raise EngineError(f"{self._where} sent a chunk that is no object: {str(chunk)[:200]}")
        choices = chunk.get("choices")
        if chunk.get("error") or chunk.get("object") == "error" or (choices is None and _is_bare_error(chunk)):
            raise from_event(chunk, where=self._where)
        try:
            return self._deltas(chunk, choices)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise EngineError(f"{self._where} sent a chunk of no known form: {repr(chunk)[:200]}") from error

    def _deltas(self, chunk: Mapping[str, Any], choices: Any) -> list[Delta]:
        usage = read_usage(chunk.get("usage"))
        self.usage = usage or self.usage
        if isinstance(choices, dict):
            choices = [choices]
        deltas: list[Delta] = []
        for choice in choices or ():
            prompt_ids = choice.get("prompt_token_ids") or chunk.get("prompt_token_ids")
            delta = self._delta(choice, usage, _ids(prompt_ids) if prompt_ids else None)
            if delta is not None:
                deltas.append(delta)
        if not choices and chunk.get("prompt_token_ids"):
            deltas.append(Delta(prompt_token_ids=_ids(chunk["prompt_token_ids"]), usage=usage))
        return deltas

    def end(self) -> list[Delta]:
        """The stream is over. Raises `EngineError` if a choice has not ended."""
        if not self.finished or self._held is None:
            raise EngineError(f"{self._where} ended its stream before the answer was finished; send the request again.")
        held, self._held = self._held, None
        return [msgspec.structs.replace(held, usage=self.usage)]

    def _delta(self, raw: Mapping[str, Any], usage: Usage | None, prompt_ids: tuple[int, ...] | None) -> Delta | None:
        index = self._index(raw.get("index"))
        choice = self._choices[index]
        if choice.finished:
            return None
        part = raw.get("delta") or raw.get("message") or {}
        text = self._new_text(choice, _text(raw["text"]) if "text" in raw else _content(part.get("content")))
        calls = self._calls(choice, part.get("tool_calls"))
        reason = finish_reason(raw.get("finish_reason"))
        if reason == "error":
            raise EngineError(f"{self._where} ended the answer with an error; send the request again.")
        if reason == "stop" and choice.call_ids:
            reason = "tool_calls"
        logprobs = _logprobs(raw.get("logprobs"), choice)
        delta = Delta(
            index=index,
            text=text,
            token_ids=_ids(raw.get("token_ids") or ()),
            reasoning=_text(part.get("reasoning") or part.get("reasoning_content")),
            tool_calls=calls,
            logprobs=logprobs,
            finish_reason=reason,
            stop_reason=_stop_reason(raw) if reason == "stop" else None,
            prompt_token_ids=prompt_ids,
            usage=usage,
        )
        choice.finished = reason is not None
        if reason is None or not self.finished:
            return delta
        # The very last end waits for the usage; what was said with it does not.
        self._held = Delta(index=index, finish_reason=reason, stop_reason=delta.stop_reason)
        says_something = text or delta.reasoning or calls or logprobs or delta.token_ids or prompt_ids
        return msgspec.structs.replace(delta, finish_reason=None, stop_reason=None) if says_something else None

    def _index(self, index: Any) -> int:
        if len(self._choices) == 1 or not isinstance(index, int):
            return 0
        if not 0 <= index < len(self._choices):
            raise EngineError(f"{self._where} sent choice {index}; {len(self._choices)} were asked for.")
        return index

    def _new_text(self, choice: _Choice, text: str) -> str:
        if not self._cumulative:
            return text
        new = text[len(choice.text) :]
        choice.text = text or choice.text
        return new

    def _calls(self, choice: _Choice, raw: Any) -> tuple[ToolCallDelta, ...]:
        if isinstance(raw, dict):
            raw = [raw]
        fragments = []
        for call in raw or ():
            function = call.get("function") or {}
            name, arguments = _text(function.get("name")) or None, function.get("arguments")
            if not isinstance(arguments, str):
                arguments = "" if arguments is None else msgspec.json.encode(arguments).decode()
            raw_id = call.get("id")
            given_id = None if raw_id in (None, "") else str(raw_id)
            index, is_new = _place(choice, call.get("index"), given_id, name)
            fragments.append(
                ToolCallDelta(index, choice.call_ids[index] if is_new else None, name if is_new else None, arguments)
            )
        return tuple(fragments)


def _place(choice: _Choice, index: Any, given_id: str | None, name: str | None) -> tuple[int, bool]:
    """(our index of a call, whether it begins here). Without an index a name begins a call, an id goes on with it."""
    key: int | str | None = index if isinstance(index, int) else given_id
    begins = name is not None and not isinstance(index, int)
    if not begins:
        if key is not None and key in choice.call_places:
            return choice.call_places[key], False
        if key is None and choice.call_ids:
            return len(choice.call_ids) - 1, False
    place = len(choice.call_ids)
    # Some servers give every call the same id; ours differ.
    fresh = given_id is not None and given_id not in choice.call_ids
    choice.call_ids.append(given_id if fresh and given_id is not None else f"call_{place}")
    if key is not None:
        choice.call_places[key] = place
    return place, True


def _is_bare_error(chunk: Mapping[str, Any]) -> bool:
    return ("message" in chunk or "detail" in chunk) and "usage" not in chunk


def _content(content: Any) -> str:
    """A string, or a list of parts with text."""
    if isinstance(content, list):
        return "".join(part.get("text", "") if isinstance(part, dict) else str(part) for part in content)
    return _text(content)


def _text(value: Any) -> str:
    """Raises `TypeError` for what is neither a string nor nothing."""
    if isinstance(value, str):
        return value
    if value:
        raise TypeError(f"a text is {type(value).__name__}")
    return ""


def _ids(value: Any) -> tuple[int, ...]:
    ids = (value,) if isinstance(value, int) else tuple(value)
    if not all(isinstance(token_id, int) for token_id in ids):
        raise TypeError("a token id is no integer")
    return ids


def _logprob(value: Any) -> float:
    """Of an alternative; JSON has no word for that of what is impossible, so servers say null."""
    return -math.inf if value is None else float(value)


def _stop_reason(raw: Mapping[str, Any]) -> int | str | None:
    for value in (raw.get("stop_reason"), raw.get("matched_stop")):
        if isinstance(value, (int, str)) and not isinstance(value, bool):
            return value
    reason = raw.get("finish_reason")
    matched = reason.get("matched") if isinstance(reason, dict) else None
    return matched if isinstance(matched, (int, str)) else None


def _logprobs(raw: Any, choice: _Choice) -> tuple[TokenLogprob, ...] | None:
    if not isinstance(raw, dict):
        return None
    if "content" in raw:
        return tuple(_chat_entry(entry, choice) for entry in raw["content"] or ())
    tokens, values = raw.get("tokens") or (), raw.get("token_logprobs") or ()
    tops, offsets = raw.get("top_logprobs") or (), raw.get("text_offset") or ()
    entries = []
    for place, (token, logprob) in enumerate(zip(tokens, values, strict=False)):
        offset = offsets[place] if place < len(offsets) else choice.offset
        choice.offset = offset + len(token)
        top = tops[place] if place < len(tops) and tops[place] else {}
        best = sorted(((text, _logprob(value)) for text, value in top.items()), key=lambda item: -item[1])
        entries.append(
            TokenLogprob(
                UNKNOWN_TOKEN_ID,
                token,
                None if logprob is None else float(logprob),
                token.encode("utf-8", "replace"),
                tuple((UNKNOWN_TOKEN_ID, text, value, text.encode("utf-8", "replace")) for text, value in best),
                offset,
            )
        )
    return tuple(entries)


def _chat_entry(raw: Mapping[str, Any], choice: _Choice) -> TokenLogprob:
    offset = choice.offset
    choice.offset += len(raw["token"])
    top = tuple(
        (other.get("id", UNKNOWN_TOKEN_ID), _text(other["token"]), _logprob(other["logprob"]), _bytes(other))
        for other in raw.get("top_logprobs") or ()
    )
    logprob = None if raw["logprob"] is None else float(raw["logprob"])
    return TokenLogprob(raw.get("id", UNKNOWN_TOKEN_ID), _text(raw["token"]), logprob, _bytes(raw), top, offset)


def _bytes(raw: Mapping[str, Any]) -> bytes:
    given = raw.get("bytes")
    return bytes(given) if given else str(raw["token"]).encode("utf-8", "replace")
