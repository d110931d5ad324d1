"""From a model's configuration to an engine over a server that already runs at `url`.

Keys that are for whoever starts that server would have no effect here and are errors; without `url` the error says how
to start the server, with these keys translated into its own flags.
"""

from __future__ import annotations

import difflib
import shlex
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from llm_inference.adapters.backend import Backend
from llm_inference.adapters.dialect import Dialect
from llm_inference.adapters.generate_api import GenerateAPIEngine
from llm_inference.adapters.generate_http import HttpBackend
from llm_inference.adapters.generate_prompt import PromptSide
from llm_inference.config.schema import ModelConfig
from llm_inference.engine.registry import EngineContext
from llm_inference.engine.types import GenerationDefaults, ModelInfo
from llm_inference.errors import ConfigError

#: Keys that mean something for a server that runs elsewhere.
_OURS = frozenset(
    {"name", "aliases", "model", "engine", "url", "api_key", "engine_args", "tokenizer", "chat_template"}
    | {"max_model_len", "max_batch_size", "generation", "warmup", "tool_parser", "reasoning_parser"}
)
#: From an engine's name, the URL and the key.
MakeBackend = Callable[[str, str, str | None], Backend]
_HTTP: Mapping[str, MakeBackend] = {"http": HttpBackend, "https": HttpBackend}


def create_remote(
    make: Callable[[Mapping[str, Any]], Dialect],
    kind: type[Dialect],
    model: ModelConfig,
    context: EngineContext,
    *,
    backends: Mapping[str, MakeBackend] = _HTTP,
) -> GenerateAPIEngine:
    """`make` builds the dialect from what it may find in `engine_args`; `backends`: by the scheme of `url`.

    Raises `ConfigError` with what to do.
    """
    if model.url is None:
        raise ConfigError(
            f"url: the engine {kind.name!r} is not started from here; start it and set `url`. "
            f"For this model: {kind.command(model)}"
        )
    backend = backends.get(urlsplit(model.url).scheme)
    if backend is None:
        raise ConfigError(f"url: {model.url} must begin with {' or '.join(f'{scheme}://' for scheme in backends)}")
    _refuse_keys_without_effect(model, kind)
    args = _engine_args(model, kind)
    dialect = make(args)
    prompts = None
    if dialect.needs_tokenizer or model.tokenizer is not None:
        prompts = PromptSide.load(model, progress=context.progress)
    if prompts is not None:
        defaults = prompts.defaults
    else:
        said = {key: value for key, value in model.generation.model_dump().items() if value is not None}
        defaults = GenerationDefaults(**said)
    # A server that allots its context by the request is not to be asked for the longest that a model can.
    known = prompts.max_model_len if prompts is not None and kind.needs_tokenizer else None
    max_model_len = model.max_model_len or known or kind.default_max_model_len
    if max_model_len is None and not kind.tells_max_model_len:
        raise ConfigError(
            f"max_model_len: neither the files of {model.name!r} nor the server say it; set it to the number of tokens "
            "of prompt and answer that the server was started with"
        )
    if model.max_model_len is not None and known is not None and model.max_model_len > known:
        raise ConfigError(f"max_model_len is {model.max_model_len}, but the model was made for {known}; set it lower")
    info = ModelInfo(
        name=model.name,
        max_model_len=max_model_len or 0,
        engine=kind.name,
        source=model.model,
        created=int(time.time()),
        vocab_size=prompts.tokenizer.vocab_size if prompts is not None else None,
        max_batch_size=model.max_batch_size,
    )
    key = model.api_key.get_secret_value() if model.api_key is not None else None
    return GenerateAPIEngine(
        dialect,
        backend(kind.name, model.url, key),
        info,
        model=model.model,
        prompts=prompts,
        defaults=defaults,
        stream=args.get("stream", True),
        limit_is_configured=model.max_model_len is not None,
    )


def _refuse_keys_without_effect(model: ModelConfig, kind: type[Dialect]) -> None:
    for key in sorted(model.model_fields_set - _OURS):
        if getattr(model, key) != type(model).model_fields[key].get_default(call_default_factory=True):
            raise ConfigError(
                f"{key}: has no effect on a server that already runs at `url`; start that server with it ({kind.name})"
            )
    for key in ("tool_parser", "reasoning_parser") if not kind.needs_tokenizer else ():
        if getattr(model, key) not in ("auto", "none"):
            raise ConfigError(f"{key}: {kind.name!r} finds tool calls and reasoning by itself; leave it out")


def _engine_args(model: ModelConfig, kind: type[Dialect]) -> Mapping[str, Any]:
    known = {"stream": bool, **kind.engine_args}
    for name, value in model.engine_args.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(sorted(known))}"
            raise ConfigError(f"engine_args.{name}: is not known for a remote {kind.name}{hint}")
        if type(value) is not known[name]:
            raise ConfigError(f"engine_args.{name}: must be a {known[name].__name__}, not {value!r}")
    return model.engine_args


def command_line(program: str, flags: Mapping[str, object]) -> str:
    """`program --flag value …`. None and False are left out, True stands without a value."""
    parts = [program]
    for name, value in flags.items():
        if value is None or value is False:
            continue
        parts.append(f"--{name}" if value is True else f"--{name} {shlex.quote(str(value))}")
    return " ".join(parts)


def said(model: ModelConfig, key: str) -> Any:
    """The value of a key that the user has set; None where nobody did."""
    return getattr(model, key) if key in model.model_fields_set else None
