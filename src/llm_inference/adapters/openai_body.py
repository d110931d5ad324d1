"""From a `GenerateRequest` to the JSON body that one server understands, by its profile.

Chat messages go to /chat/completions, where the server's own template is applied; text and token ids to /completions.
What the server cannot do and we do not emulate is refused here, also for callers that never asked the capabilities:
nothing is dropped. Knows nothing of connections.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from llm_inference.adapters.profile import Profile, is_structured_output
from llm_inference.engine.types import ChatPrompt, GenerateRequest, GenerationDefaults, SamplingParams
from llm_inference.errors import InvalidRequestError

CHAT_PATH = "/chat/completions"
COMPLETION_PATH = "/completions"

#: Field → the values that ask for nothing, first the one that a request has which does not speak of it.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_k": (None, 0, -1),
    "min_p": (None, 0.0),
    "repetition_penalty": (None, 1.0),
    "presence_penalty": (None, 0.0),
    "frequency_penalty": (None, 0.0),
    "seed": (None,),
    "min_tokens": (0,),
    "stop_token_ids": ((),),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "n": (1,),
    "best_of": (None,),
}


def with_defaults(sampling: SamplingParams, defaults: GenerationDefaults) -> SamplingParams:
    """The configuration's `generation:` where the request says nothing; the rest is the server's to fill in."""
    given = {
        name: value
        for name in defaults.__struct_fields__
        if (value := getattr(defaults, name)) is not None and getattr(sampling, name) is None
    }
    return msgspec.structs.replace(sampling, **given) if given else sampling


def path_of(request: GenerateRequest) -> str:
    return CHAT_PATH if isinstance(request.prompt, ChatPrompt) else COMPLETION_PATH


def make_body(
    request: GenerateRequest, profile: Profile, model: str, *, max_tokens: int | None, upstream_stops: bool
) -> dict[str, Any]:
    """The body of one call, streaming where it can be.

    `max_tokens`: what is sent where the request says none; None: nothing.
    Raises `InvalidRequestError` for a field that the profile refuses.
    """
    prompt, sampling = request.prompt, request.sampling
    body: dict[str, Any] = {"model": model, "stream": True, **profile.constants}
    if isinstance(prompt, ChatPrompt):
        body["messages"] = [_message(message) for message in prompt.messages]
    else:
        body["prompt"] = list(prompt) if isinstance(prompt, tuple) else prompt
    if profile.usage_option:
        options: dict[str, Any] = {"include_usage": True}
        if profile.continuous_usage:
            options["continuous_usage_stats"] = True
        body["stream_options"] = options
    limit = sampling.max_tokens if sampling.max_tokens is not None else max_tokens
    if limit is not None:
        body["max_tokens"] = limit
    elif profile.completion_length == "null" and not isinstance(prompt, ChatPrompt):
        body["max_tokens"] = None
    for name in ("temperature", "top_p"):
        if (value := getattr(sampling, name)) is not None:
            body[name] = value
    if sampling.stop and upstream_stops:
        body["stop"] = list(sampling.stop)
    for name, fields in _asked(request, profile):
        if profile.support(name) == "refused":
            reason = profile.capabilities.reasons.get(name, "it cannot do that")
            raise InvalidRequestError(f"{name}: the engine {profile.name!r} refuses it: {reason}.", param=name)
        if name in profile.chat_only and not isinstance(prompt, ChatPrompt):
            raise InvalidRequestError(
                f"{name}: the engine {profile.name!r} has it for chats alone; use /chat/completions.", param=name
            )
        body.update(fields)
    if sampling.best_of is not None:  # no server streams it: the best of several is known at their end
        body["stream"] = False
        body.pop("stream_options", None)
    body.update(request.extra)
    return profile.rewrite({profile.renames.get(name, name): value for name, value in body.items()})


def _asked(request: GenerateRequest, profile: Profile) -> Iterator[tuple[str, dict[str, Any]]]:
    """(the capability's name, the fields of the body) of everything that asks for something."""
    yield from _sampling_fields(request.sampling, profile)
    if isinstance(request.prompt, ChatPrompt):
        yield from _chat_fields(request, request.prompt)
    elif request.echo:
        yield "echo", {"echo": True}
    if not request.add_special_tokens and isinstance(request.prompt, str):
        yield "add_special_tokens", {"add_special_tokens": False}
    if request.priority:
        yield "priority", {"priority": profile.priority_sign * request.priority}
    if request.cache_salt is not None:
        yield "cache_salt", {"cache_salt": request.cache_salt}
    if request.sampling.logprobs is not None:
        yield from _logprobs(request, request.sampling.logprobs)


def _sampling_fields(sampling: SamplingParams, profile: Profile) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, values in _NEUTRAL.items():
        value = getattr(sampling, name)
        if value is values[0]:
            continue
        # A neutral value that was said (0, not None) is sent where the server knows the field: its default may differ.
        said = value is not None and name in ("top_k", "repetition_penalty", "presence_penalty", "frequency_penalty")
        if value not in values or (said and profile.support(name) == "enforced"):
            yield name, {} if profile.support(name) == "emulated" else {name: _plain(value)}
    if sampling.logit_bias:
        yield "logit_bias", {"logit_bias": {str(token): bias for token, bias in sampling.logit_bias.items()}}
    if sampling.num_beams > 1:
        yield "num_beams", {"num_beams": sampling.num_beams}
        if sampling.length_penalty != 1.0:
            yield "length_penalty", {"length_penalty": sampling.length_penalty}
        if sampling.early_stopping:
            yield "early_stopping", {"early_stopping": True}
    if sampling.logits_processors:
        yield "logits_processors", {}
    if sampling.forced_eos_token_id is not None:
        yield "forced_eos_token_id", {}
    if sampling.grammar is not None:
        name = "structured_outputs" if is_structured_output(sampling.grammar) else "response_format"
        yield name, profile.grammar(sampling.grammar) if profile.support(name) != "refused" else {}


def _chat_fields(request: GenerateRequest, prompt: ChatPrompt) -> Iterator[tuple[str, dict[str, Any]]]:
    if prompt.tools:
        yield "tools", {"tools": list(prompt.tools)}
        if request.tool_choice is not None:
            yield "tool_choice", {"tool_choice": request.tool_choice}
        if not request.parallel_tool_calls:
            yield "parallel_tool_calls", {"parallel_tool_calls": False}
    kwargs = dict(prompt.template_kwargs)
    effort = kwargs.pop("reasoning_effort", None)
    if effort is not None:
        yield "reasoning_effort", {"reasoning_effort": effort}
    if kwargs:
        yield "chat_template_kwargs", {"chat_template_kwargs": kwargs}
    if prompt.continue_final_message:
        yield "continue_final_message", {"continue_final_message": True, "add_generation_prompt": False}
    elif not prompt.add_generation_prompt:
        yield "add_generation_prompt", {"add_generation_prompt": False}


def _logprobs(request: GenerateRequest, num_top: int) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(request.prompt, ChatPrompt):
        yield "logprobs", {"logprobs": num_top}
        return
    yield "logprobs", {"logprobs": True}
    if num_top:
        yield "top_logprobs", {"top_logprobs": num_top}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """As clients send them: the gateway's copy of arguments as an object goes back to being text."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_call(call) for call in calls]}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function", {})
    arguments = function.get("arguments")
    if isinstance(arguments, str) or arguments is None:
        return call
    return {**call, "function": {**function, "arguments": msgspec.json.encode(arguments).decode()}}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
