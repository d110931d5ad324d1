"""The request fields that chat, completions and batches share, as pydantic models; what is refused, and why.

Strict: a boolean is no number, a string is no integer, NaN and Infinity do not exist, null means absent. A field that
is unknown, or known and without effect here, is a 400 that names it. Whether an *engine* can do what a field asks is
not known here: `sampling.py` asks its capabilities.
"""

from __future__ import annotations

import difflib
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, WithJsonSchema

from llm_inference.engine.types import Grammar, LogitsProcessorCall
from llm_inference.errors import InvalidRequestError
from llm_inference.gateway.openai import constraints, values

#: No context is as long; what is over it is a typing error, not a wish.
MAX_TOKENS = 2**24
MAX_CHOICES = 128
MAX_TOP_LOGPROBS = 20
MAX_LENGTH_PENALTY = 20.0

Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
LengthPenalty = Annotated[float, Field(ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY, allow_inf_nan=False)]
StopStrings = Annotated[
    tuple[str, ...],
    PlainValidator(values.stop_strings),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "maxItems": values.MAX_STOPS, "items": {"type": "string", "minLength": 1}},
            ]
        }
    ),
]
StopTokenIds = Annotated[
    tuple[int, ...],
    PlainValidator(values.stop_token_ids),
    WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": 0}}),
]
LogitBias = Annotated[
    dict[int, float],
    PlainValidator(values.logit_bias),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}}),
]
ResponseFormat = Annotated[
    Grammar | None,  # None: text, that is, no constraint
    PlainValidator(constraints.response_format),
    WithJsonSchema(constraints.RESPONSE_FORMAT_SCHEMA),
]
StructuredOutputs = Annotated[
    Grammar,
    PlainValidator(constraints.structured_outputs),
    WithJsonSchema(constraints.STRUCTURED_OUTPUTS_SCHEMA),
]
GuidedJson = Annotated[
    Grammar,
    PlainValidator(lambda value: constraints.one("json", value, "guided_json")),
    WithJsonSchema({"type": ["object", "string"]}),
]
GuidedRegex = Annotated[
    Grammar,
    PlainValidator(lambda value: constraints.one("regex", value, "guided_regex")),
    WithJsonSchema({"type": "string"}),
]
GuidedChoice = Annotated[
    Grammar,
    PlainValidator(lambda value: constraints.one("choice", value, "guided_choice")),
    WithJsonSchema({"type": "array", "items": {"type": "string"}}),
]
GuidedGrammar = Annotated[
    Grammar,
    PlainValidator(lambda value: constraints.one("grammar", value, "guided_grammar")),
    WithJsonSchema({"type": "string"}),
]
LogitsProcessors = Annotated[
    tuple[LogitsProcessorCall, ...],
    PlainValidator(values.logits_processors),
    WithJsonSchema(
        {
            "type": "array",
            "maxItems": values.MAX_LOGITS_PROCESSORS,
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "args": {"type": "object"}},
            },
        }
    ),
]
RequestT = TypeVar("RequestT", bound="RequestFields")


class RequestFields(BaseModel):
    """The root of all request models: how a body becomes one."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, arbitrary_types_allowed=True)

    #: Fields that the API knows and that would have no effect here → why, and what to do instead.
    refused: ClassVar[dict[str, str]] = {}
    #: Fields of which only one value is honest → (those values, why no other).
    inert: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = {}

    model: Annotated[str, Field(min_length=1)] | None = None

    @classmethod
    def parse(cls: type[RequestT], body: dict[str, Any]) -> RequestT:
        """The request in `body`. Raises `InvalidRequestError` for the first thing that is wrong."""
        given = {key: value for key, value in body.items() if value is not None}
        known = cls.model_fields
        for key in [key for key in given if key not in known]:
            _check_extra(cls, key, given.pop(key))
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            param = _path(first["loc"])
            raise values.fail(param, f"{first['msg']}.") from error


class SamplingFields(RequestFields):
    """How to choose tokens: OpenAI's names, the de-facto extras and the aliases of transformers' habits."""

    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    max_completion_tokens: Tokens | None = None
    max_new_tokens: Tokens | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    min_new_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    forced_eos_token_id: Annotated[int, Field(ge=0)] | None = None
    #: 0: the likeliest token. There is no upper limit but a finite number.
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    do_sample: bool | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    #: -1 and 0: off.
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopStrings = ()
    stop_token_ids: StopTokenIds = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    num_beams: Annotated[int, Field(ge=1, le=64)] = 1
    #: An exponent of the output's length; beyond this it would leave the range of numbers.
    length_penalty: LengthPenalty | None = None
    early_stopping: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: GuidedJson | None = None
    guided_regex: GuidedRegex | None = None
    guided_choice: GuidedChoice | None = None
    guided_grammar: GuidedGrammar | None = None
    #: Plug-ins of the engine; see docs/adding-a-model.md.
    logits_processors: LogitsProcessors = ()
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = 0
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    #: One of the model's tiers; auto and default leave the choice to the service. See `gateway/routing/tiers.py`.
    service_tier: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    # Annotations of the caller's own, accepted as they are. `user` also keeps a caller's requests together.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, Any] | None = None

    refused: ClassVar[dict[str, str]] = {
        "max_length": "counts the prompt, too; use max_new_tokens (or max_tokens), which counts the output alone.",
        "min_length": "counts the prompt, too; use min_new_tokens (or min_tokens).",
        "prompt_logprobs": "is answered only as /completions does: send echo and logprobs there.",
        "prediction": "no engine here uses predicted outputs.",
        "background": "requests are answered while the connection is open.",
    }
    inert: ClassVar[dict[str, tuple[tuple[Any, ...], str]]] = {
        "store": ((False,), "nothing is stored here; leave it out or send false."),
    }


class StreamOptions(BaseModel):
    """`stream_options`. Obfuscation is padding that this server does not send."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


def _check_extra(model: type[RequestFields], key: str, value: Any) -> None:
    """Pass a field that is no field of `model` only if it is inert and honest. Raises `InvalidRequestError`."""
    shown = key[:64]
    if key in model.inert:
        allowed, reason = model.inert[key]
        if any(type(value) is type(item) and value == item for item in allowed):
            return
        raise values.fail(shown, f"this value would have no effect: {reason}")
    if key in model.refused:
        raise values.fail(shown, model.refused[key])
    near = difflib.get_close_matches(shown, model.model_fields, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise InvalidRequestError(f"{shown}: is not a field of this request.{hint}", param=shown, code="unknown_parameter")


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path
