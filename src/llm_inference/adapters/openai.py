"""`engine: openai`: any server with an OpenAI-compatible API at `url`, several of them separated by commas.

What the API itself has is taken to be enforced. A server that says who it is (`owned_by` in its model list) is treated
by its own profile; what another one can do beyond the API is named in `engine_args.fields`.
"""

from __future__ import annotations

import dataclasses
import difflib

from llm_inference.adapters import llamacpp, ollama, sglang, vllm
from llm_inference.adapters.managed import local_tokenizer, remote_urls, settings_of
from llm_inference.adapters.openai_http import OpenAIEngine
from llm_inference.adapters.profile import FIELDS, Profile
from llm_inference.adapters.vllm import structured_outputs
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.base import Engine
from llm_inference.engine.registry import EngineContext
from llm_inference.errors import ConfigError

_BEYOND = "the API does not have it; if the server does, name it in engine_args.fields"
_STANDARD = frozenset(
    (
        "seed",
        "logprobs",
        "top_logprobs",
        "echo",
        "n",
        "best_of",
        "frequency_penalty",
        "presence_penalty",
        "logit_bias",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "reasoning_effort",
    )
)
PROFILE = Profile(
    name="openai",
    evidence="documented",
    source="OpenAI's API document; a second instance of this server in the tests",
    enforced=_STANDARD,
    emulated=frozenset(("include_stop_str_in_output",)),
    reasons={name: _BEYOND for name in FIELDS if name not in _STANDARD and name != "include_stop_str_in_output"},
    max_stop_strings=4,
    completion_length="number",
)
#: This very server, at another address.
OURS = Profile(
    name="llm-inference",
    evidence="documented",
    source="a second instance of this server in the tests",
    enforced=frozenset(FIELDS) - {"logits_processors", "forced_eos_token_id", "reasoning_effort"},
    reasons={"reasoning_effort": "pass the template's own switch in chat_template_kwargs"},
    grammar=structured_outputs,
    health_path="/ready",  # its /health is 200 while its engine is brought back
    tokenize=True,
    continuous_usage=True,
    # The engine is not told which clients want them.
    constants={"return_token_ids": True},
)
_RECOGNISED: dict[str | None, Profile] = {
    **{profile.owned_by: profile for profile in (vllm.PROFILE, sglang.PROFILE, llamacpp.PROFILE, ollama.PROFILE)},
    "native": OURS,
    "llm-inference": OURS,
}


def create(model: ModelConfig, context: EngineContext) -> Engine:
    """Raises `ConfigError` without `url`, and for a field in `engine_args.fields` that does not exist."""
    if model.url is None:
        raise ConfigError("engine: 'openai' needs `url`, the address of a server that already runs")
    extra = model.engine_args.get("fields", [])
    for name in extra:
        if name not in FIELDS:
            near = difflib.get_close_matches(str(name), FIELDS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"engine_args.fields: {name!r} is no request field{hint}")
    more = frozenset(extra)
    urls = remote_urls(model)

    def recognise(owned_by: str) -> Profile | None:
        found = _RECOGNISED.get(owned_by)
        return None if found is None else _with_fields(found, more)

    settings = settings_of(model, model.model, urls, PROFILE)
    return OpenAIEngine(settings, _with_fields(PROFILE, more), local_tokenizer(model), recognise=recognise)


def _with_fields(profile: Profile, more: frozenset[str]) -> Profile:
    if more <= profile.enforced:
        return profile
    reasons = {name: reason for name, reason in profile.reasons.items() if name not in more}
    return dataclasses.replace(
        profile, enforced=profile.enforced | more, emulated=profile.emulated - more, reasons=reasons
    )
