"""From checked request fields to `SamplingParams`, for one model: what contradicts itself, what the engine refuses.

Every field whose value would change the output (or its order, or what is reported) is put to the engine's
`Capabilities` under the name that clients use. A refused one is a 400 with the engine's reason; nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llm_inference.engine.base import Capabilities
from llm_inference.engine.types import Grammar, ModelInfo, SamplingParams
from llm_inference.errors import InvalidRequestError
from llm_inference.gateway.openai import values
from llm_inference.gateway.openai.fields import RequestFields, SamplingFields
from llm_inference.gateway.openai.values import fail

#: Field → the values that ask for nothing, which every engine can serve. Other fields are always supported.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_k": (-1, 0),
    "min_p": (0.0,),
    "seed": (),
    "logprobs": (False,),
    "top_logprobs": (),
    "echo": (False,),
    "n": (1,),
    "best_of": (1,),
    "frequency_penalty": (0.0,),
    "presence_penalty": (0.0,),
    "repetition_penalty": (1.0,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "stop_token_ids": ((),),
    "ignore_eos": (False,),
    "forced_eos_token_id": (),
    "tools": ((),),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True,),
    "response_format": (None,),
    "structured_outputs": (),
    "num_beams": (1,),
    "length_penalty": (1.0,),
    "early_stopping": (False,),
    "cache_salt": (),
    "priority": (0,),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "return_token_ids": (False,),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "reasoning_effort": (),
    "add_special_tokens": (True,),
    "logits_processors": ((),),
}

#: Fields that say which form the output has.
_GRAMMARS = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")

#: Other spellings of a field in NEUTRAL.
ALIASES = {
    "min_new_tokens": "min_tokens",
    "guided_json": "structured_outputs",
    "guided_regex": "structured_outputs",
    "guided_choice": "structured_outputs",
    "guided_grammar": "structured_outputs",
}


def check_capabilities(fields: RequestFields, capabilities: Capabilities, info: ModelInfo) -> None:
    """Raise `InvalidRequestError` for text from an encoder, or the first field that asks for what is refused."""
    if isinstance(fields, SamplingFields) and not capabilities.generate:
        raise InvalidRequestError(
            f"The model {info.name!r} is an encoder: it makes vectors of texts (/embeddings), and no text.",
            param="model",
            code="unsupported_operation",
        )
    for field, name in _asked(fields):
        if capabilities.support(name) == "refused":
            reason = capabilities.reasons.get(name, "it cannot do that")
            raise fail(field, f"the engine {info.engine!r} of model {info.name!r} refuses it: {reason.rstrip('.')}.")


def _asked(fields: RequestFields) -> Iterator[tuple[str, str]]:
    """(the client's spelling, the capability's name) of every field that asks for something."""
    for field in fields.model_fields_set:
        name = ALIASES.get(field, field)
        neutral = NEUTRAL.get(name)
        if neutral is None:
            continue
        value = getattr(fields, field)
        if not any(type(value) is type(item) and value == item for item in neutral):
            yield field, name


def sampling_params(
    fields: SamplingFields,
    info: ModelInfo,
    *,
    n: int = 1,
    best_of: int | None = None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """The engine's form of `fields`. None stays None: the model's defaults are the engine's to fill in.

    Raises `InvalidRequestError` for fields that contradict each other, would have no effect together, or name tokens
    outside the vocabulary.
    """
    max_tokens = _agreed(fields, "max_tokens", "max_completion_tokens", "max_new_tokens")
    min_tokens = _agreed(fields, "min_tokens", "min_new_tokens") or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise fail("min_tokens", f"is {min_tokens}, more than the {max_tokens} tokens allowed at most.")
    values.check_range(fields.stop_token_ids, "stop_token_ids", info.vocab_size)
    values.check_range(tuple(fields.logit_bias or ()), "logit_bias", info.vocab_size)
    if fields.forced_eos_token_id is not None:
        values.check_range((fields.forced_eos_token_id,), "forced_eos_token_id", info.vocab_size)
    if best_of is not None and best_of < n:
        raise fail("best_of", f"is {best_of}, less than n={n}.")
    if fields.num_beams == 1 and not fields.model_fields_set.isdisjoint(("length_penalty", "early_stopping")):
        for field in ("length_penalty", "early_stopping"):
            if getattr(fields, field) not in (None, 1.0 if field == "length_penalty" else False):
                raise fail(field, "would have no effect without num_beams > 1.")
    if n > fields.num_beams > 1:
        raise fail("n", f"is {n}, more than num_beams={fields.num_beams}.")
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=_temperature(fields),
        top_p=fields.top_p,
        top_k=fields.top_k,
        min_p=fields.min_p,
        repetition_penalty=fields.repetition_penalty,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        logit_bias=fields.logit_bias or None,
        seed=fields.seed,
        stop=fields.stop,
        stop_token_ids=fields.stop_token_ids,
        ignore_eos=fields.ignore_eos,
        forced_eos_token_id=fields.forced_eos_token_id,
        include_stop_str_in_output=fields.include_stop_str_in_output,
        skip_special_tokens=fields.skip_special_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        n=n,
        best_of=None if best_of == n else best_of,
        num_beams=fields.num_beams,
        length_penalty=1.0 if fields.length_penalty is None else fields.length_penalty,
        early_stopping=bool(fields.early_stopping),
        grammar=_grammar(fields),
        logits_processors=fields.logits_processors,
    )


def _agreed(fields: SamplingFields, *names: str) -> int | None:
    """The value of whichever alias is given. Two that differ are an error that names both."""
    given = [(name, getattr(fields, name)) for name in names if getattr(fields, name) is not None]
    for name, value in given[1:]:
        if value != given[0][1]:
            raise fail(name, f"is {value}, but {given[0][0]} is {given[0][1]}; they mean the same, send one.")
    return int(given[0][1]) if given else None


def _temperature(fields: SamplingFields) -> float | None:
    temperature = fields.temperature
    if fields.do_sample is None:
        return temperature
    if fields.do_sample and temperature == 0:
        raise fail("do_sample", "would have no effect with temperature 0, which takes the likeliest token.")
    if not fields.do_sample:
        if temperature:
            raise fail("temperature", "would have no effect with do_sample=false; send one of the two.")
        return 0.0
    return temperature


def _grammar(fields: SamplingFields) -> Grammar | None:
    if fields.model_fields_set.isdisjoint(_GRAMMARS):
        return None
    given: list[tuple[str, Grammar]] = [
        (name, value) for name in _GRAMMARS if (value := getattr(fields, name)) is not None
    ]
    if len(given) > 1:
        raise fail(given[1][0], f"cannot be combined with {given[0][0]}: an output has one form.")
    return given[0][1] if given else None
