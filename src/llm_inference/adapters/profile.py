"""What one OpenAI-speaking server is like, as data: which request fields it takes, and how it spells them.

A profile is a table and holds no code but the translation of a grammar and, for an odd server, of a body. How a server
is started is not known here (`launch.py`), nor how one is talked to (`openai_http.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from llm_inference.engine.base import Capabilities, Support
from llm_inference.engine.types import Grammar

#: How sure a row of docs/engines.md is: run for real, replayed from a real server's bytes, or read in its documents.
#: It says "live" of what docs/engines_live.json, the conformance suite's results, shows to have passed.
Evidence = Literal["live", "recorded", "documented"]

#: What a grammar becomes in the body. Raises `InvalidRequestError` for a kind that the server has no word for.
GrammarFields = Callable[[Grammar], dict[str, Any]]

#: What a server does when /completions is sent without `max_tokens`: goes on to the end of the context, does so when
#: null is sent, or stops at 16 tokens, so that a number must be worked out and sent. "always": a number must go with
#: chats too, and nobody but us minds the length of the prompt.
CompletionLength = Literal["context", "null", "number", "always"]
#: The last word on a body: what cannot be said by other names of fields alone.
Rewrite = Callable[[dict[str, Any]], dict[str, Any]]

#: Every field that a profile must speak of, as clients spell them. All others are always supported.
FIELDS = (
    "top_k",
    "min_p",
    "seed",
    "logprobs",
    "top_logprobs",
    "echo",
    "n",
    "best_of",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "structured_outputs",
    "num_beams",
    "length_penalty",
    "early_stopping",
    "logits_processors",
    "forced_eos_token_id",
    "cache_salt",
    "priority",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
    "return_token_ids",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "reasoning_effort",
    "add_special_tokens",
)

_BEAMS = "no beam search over its OpenAI routes"
#: Why a field is refused where a profile gives no reason of its own.
COMMON_REASONS = {
    "num_beams": _BEAMS,
    "length_penalty": _BEAMS,
    "early_stopping": _BEAMS,
    "logits_processors": "logits processors of plug-ins run in the native engine alone",
    "forced_eos_token_id": "no engine but the native one has a word for it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """`enforced` and `emulated` name fields of `FIELDS`; every other needs an entry in `reasons`."""

    name: str
    evidence: Evidence
    source: str  # what the evidence is: a version, or where it is documented
    enforced: frozenset[str]
    reasons: Mapping[str, str]
    emulated: frozenset[str] = frozenset()
    #: Our name of a field → the server's.
    renames: Mapping[str, str] = field(default_factory=dict)
    #: 1: lower numbers run first there, as here; -1: higher ones do.
    priority_sign: Literal[1, -1] = 1
    grammar: GrammarFields = lambda grammar: response_format(grammar)
    health_path: str = "/health"
    api_prefix: str = "/v1"
    #: The server has vLLM's /tokenize and /detokenize beside the API.
    tokenize: bool = False
    #: /completions takes lists of token ids.
    token_prompts: bool = True
    #: Fields that /chat/completions takes and /completions would leave without effect.
    chat_only: frozenset[str] = frozenset()
    #: `stop` is enforced by the server; otherwise by us, and the connection is closed at a match.
    stop_strings: bool = True
    #: Most stop strings that the server takes; beyond it they are ours.
    max_stop_strings: int | None = None
    completion_length: CompletionLength = "context"
    #: `stream_options` is understood: usage at the end, and running totals in every chunk.
    usage_option: bool = True
    continuous_usage: bool = False
    #: `text` of /completions and `content` are everything so far, rather than what is new.
    cumulative_text: bool = False
    rewrite: Rewrite = lambda body: body
    #: The server cuts `max_tokens` to what the context leaves and says nothing, so that we count and refuse.
    cuts_max_tokens: bool = False
    #: One choice alone where the likeliest token is taken; several are then as many requests.
    one_greedy_choice: bool = False
    #: False: it closes a connection after a streamed answer without saying so.
    keep_alive: bool = True
    #: Sent in every body.
    constants: Mapping[str, Any] = field(default_factory=dict)
    #: `owned_by` in its model list, by which a plain `openai` URL is recognised.
    owned_by: str | None = None

    def __post_init__(self) -> None:
        said = {*self.enforced, *self.emulated, *self.reasons, *COMMON_REASONS}
        wrong = said.symmetric_difference({*FIELDS, *COMMON_REASONS})
        assert not wrong, f"{self.name}: fields without a word, or unknown ones: {sorted(wrong)}"
        assert not self.enforced & self.emulated, self.name

    @property
    def capabilities(self) -> Capabilities:
        fields: dict[str, Support] = dict.fromkeys(FIELDS, "refused")
        fields.update(dict.fromkeys(self.emulated, "emulated"))
        fields.update(dict.fromkeys(self.enforced, "enforced"))
        reasons = {**COMMON_REASONS, **self.reasons}
        return Capabilities(
            fields=fields,
            reasons={name: reasons[name] for name in FIELDS if fields[name] == "refused"},
            tokenize=self.tokenize,
        )

    def support(self, name: str) -> Support:
        if name in self.enforced:
            return "enforced"
        return "emulated" if name in self.emulated else "refused"


def response_format(grammar: Grammar) -> dict[str, Any]:
    """OpenAI's own two forms; what it has no form for is refused by the profile's table before."""
    if grammar.kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    schema = msgspec.json.decode(grammar.source) if grammar.kind == "json_schema" else {"enum": _choices(grammar)}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}}


def is_structured_output(grammar: Grammar) -> bool:
    """Whether only `structured_outputs` (and not `response_format`) can ask for it."""
    return grammar.kind in ("regex", "choice", "grammar")


def _choices(grammar: Grammar) -> list[str]:
    choices: list[str] = msgspec.json.decode(grammar.source)
    return choices
