"""What one engine with a protocol of its own adds to the common engine of `generate_api`: its words and its habits."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from llm_inference.adapters.backend import Backend
from llm_inference.adapters.frames import Framing
from llm_inference.adapters.generate_choice import Piece
from llm_inference.adapters.generate_prompt import PreparedPrompt
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Capabilities, Support
from llm_inference.engine.types import GenerateRequest, Grammar, SamplingParams, TokenLogprob
from llm_inference.errors import InvalidRequestError

#: Temperatures below this take the likeliest token, as the native engine has it.
GREEDY_BELOW = 1e-5

#: From one decoded JSON value of the answer to what is new in it. Made once for each call, so it may remember.
Reader = Callable[[Any], Iterable[Piece]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One POST: what is asked for. `stop`: stop strings that the engine may be told, so that it ends early."""

    model: str
    request: GenerateRequest
    sampling: SamplingParams
    prompt: PreparedPrompt | None
    max_model_len: int
    stream: bool
    num_choices: int = 1
    stop: tuple[str, ...] = ()

    @property
    def greedy(self) -> bool:
        temperature = self.sampling.temperature
        return temperature is not None and temperature < GREEDY_BELOW

    @property
    def text(self) -> str:
        """The prompt for an engine that adds special tokens by itself."""
        assert self.prompt is not None, "only chats of a dialect with a template of its own are not prepared"
        return self.prompt.text


@dataclass(frozen=True, slots=True)
class Route:
    """Where a call goes and how its answer is framed."""

    path: str
    body: dict[str, Any]
    framing: Framing


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself; None: nothing. Raises `TypeError` where it says no number."""

    max_model_len: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.max_model_len, int | None):
            raise TypeError("a context length is no number")


class Dialect(ABC):
    """One engine's protocol. One instance for each served model."""

    name: ClassVar[str]
    health_path: ClassVar[str] = "/health"
    #: An answer is over when its body is: there is no last word.
    ends_with_body: ClassVar[bool] = False
    #: The server knows its model's own sampling defaults: what nobody said is left to it.
    own_defaults: ClassVar[bool] = False
    #: False: the server has a chat template and counts by itself.
    needs_tokenizer: ClassVar[bool] = True
    streams: ClassVar[bool] = True
    #: Used where neither configuration, model files nor server say how long a prompt may be.
    default_max_model_len: ClassVar[int | None] = None
    #: `probe` says how long a prompt may be.
    tells_max_model_len: ClassVar[bool] = False
    #: What `engine_args` may say beside `stream`, with its type.
    engine_args: ClassVar[Mapping[str, type]] = {}

    capabilities: Capabilities

    @property
    def strips_prompt(self) -> bool:
        """Whether an output begins with the prompt."""
        return False

    @classmethod
    @abstractmethod
    def command(cls, model: ModelConfig) -> str:
        """How to start this engine for such a configuration, as a user would type it."""

    @abstractmethod
    def route(self, call: Call) -> Route:
        """Raises `InvalidRequestError` for what this engine's protocol cannot say."""

    @abstractmethod
    def reader(self, call: Call) -> Reader: ...

    def is_ready(self, status: int) -> bool:
        """What the status of `health_path` says."""
        return status < 400

    def check(self, request: GenerateRequest) -> None:  # noqa: B027  most dialects have nothing to add
        """Raises `InvalidRequestError` for values of supported fields that this engine cannot take."""

    def choices_in_one_call(self, sampling: SamplingParams) -> bool:
        """Whether all choices must come from one call, which is then not streamed (best_of)."""
        return False

    def must_not_stream(self, request: GenerateRequest) -> bool:
        """Whether only the unstreamed answer holds what the request asks for."""
        return False

    async def probe(self, backend: Backend, model: str) -> ServerFacts:
        """Ask a server that is ready about itself. Raises `StartupError` if it cannot serve the model."""
        return ServerFacts()


#: What we do around every one of these engines.
_EMULATED = (
    "n",
    "echo",
    "include_stop_str_in_output",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
    "tools",
    "parallel_tool_calls",
)
_REFUSED = {
    "tool_choice": "its output cannot be constrained, so no call can be forced; leave it out, or send none or auto",
    "reasoning_effort": "pass the template's own switch in `chat_template_kwargs`",
    "prompt_logprobs": "use `echo` together with `logprobs` on /v1/completions",
    "priority": "its protocol has no priorities",
    "cache_salt": "its protocol cannot separate prefix caches",
    "logits_processors": "they run inside the native engine only",
    "forced_eos_token_id": "only the native engine has a word for it",
    "num_beams": "its protocol has no beam search",
    "length_penalty": "its protocol has no beam search",
    "early_stopping": "its protocol has no beam search",
}
_EBNF = "its grammars are EBNF, those of this API are Lark"


def capability_table(
    *, enforced: Iterable[str], emulated: Iterable[str] = (), refused: dict[str, str] | None = None
) -> Capabilities:
    """The table of one dialect: what it says, over what is common to all."""
    fields: dict[str, Support] = dict.fromkeys(_EMULATED, "emulated")
    fields.update(dict.fromkeys(emulated, "emulated"))
    fields.update(dict.fromkeys(enforced, "enforced"))
    if "response_format" in fields:  # a forced call is an output of that form
        fields.setdefault("tool_choice", "emulated")
    for name in refused or {}:
        fields.pop(name, None)
    reasons = {name: why for name, why in {**_REFUSED, **(refused or {})}.items() if name not in fields}
    return Capabilities(fields=fields, reasons=reasons, tokenize=True)


def logprob(token_id: int, text: str, value: float | None, top: Iterable[tuple[int, str, float]] = ()) -> TokenLogprob:
    """In our words; `top` is sorted here. Raises `TypeError` or `ValueError` for what is no number."""
    best = sorted(top, key=lambda entry: entry[2], reverse=True)
    return TokenLogprob(
        token_id=token_id,
        token=text,
        logprob=None if value is None else float(value),
        token_bytes=text.encode("utf-8", "replace"),
        top=tuple((i, name, float(lp), name.encode("utf-8", "replace")) for i, name, lp in best),
    )


def refuse_lark(engine: str, grammar: Grammar | None, reason: str = _EBNF) -> None:
    """Raises `InvalidRequestError` for what `schema_or_regex` has no form for."""
    if grammar is not None and grammar.kind == "grammar":
        raise refuse(engine, "structured_outputs", reason)


def schema_or_regex(grammar: Grammar) -> tuple[Literal["json_schema", "regex"], str]:
    """What constrains an output, in one of the two forms that most engines take. A Lark grammar has been refused."""
    if grammar.kind == "json_object":
        return "json_schema", '{"type": "object"}'
    if grammar.kind == "json_schema":
        return "json_schema", grammar.source
    if grammar.kind == "choice":
        return "regex", "(" + "|".join(map(_literal, json.loads(grammar.source))) + ")"
    assert grammar.kind == "regex", f"a {grammar.kind} is refused before"
    return "regex", grammar.source


def _literal(text: str) -> str:
    """Escaped by characters that every regular expression engine reads alike."""
    return re.sub(r"([.^$*+?{}\[\]\\|()])", r"\\\1", text)


def refuse(engine: str, field: str, reason: str) -> InvalidRequestError:
    """A refusal of a value, in the words in which the gateway refuses a field."""
    return InvalidRequestError(f"{field}: the engine {engine!r} refuses it: {reason}.", param=field)
