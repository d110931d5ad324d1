"""Flags that set configuration, once for every command that reads one.

A flag is a literal row: its name, the config key it sets and how to read it. Knows nothing of what the keys mean; a
wrong value is the config's error, which then names the flag.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llm_inference.config.load import LoadedConfig, Override
    from llm_inference.config.schema import ModelConfig


@dataclass(frozen=True, slots=True)
class Flag:
    """`read` makes the value of the text; a `constant` flag takes no text; `many` may be given several times."""

    name: str
    path: tuple[str, ...]
    help: str
    read: Callable[[str], Any] = str
    metavar: str | None = None
    constant: Any = None
    many: bool = False

    @property
    def dest(self) -> str:
        return f"flag:{self.name}"


API_FLAGS = (
    Flag("--host", ("api", "host"), "address to listen on (127.0.0.1; 0.0.0.0 for every interface)"),
    Flag("--port", ("api", "port"), "port to listen on (8000; 0 takes any free one)", int),
    Flag("--uds", ("api", "uds"), "listen on this Unix socket instead", metavar="PATH"),
    Flag("--api-prefix", ("api", "api_prefix"), "path before the OpenAI routes (/v1)", metavar="PATH"),
    Flag("--api-key", ("api", "api_keys"), "key that clients must send; may be repeated", metavar="KEY", many=True),
    Flag(
        "--cors-origin",
        ("api", "cors_origins"),
        "origin that browsers may call from; may be repeated",
        str,
        "URL",
        many=True,
    ),
    Flag("--workers", ("api", "workers"), "gateway processes (1)", int, "N"),
    Flag("--max-concurrent-requests", ("api", "max_concurrent_requests"), "more are refused with 503", int, "N"),
    Flag("--shutdown-grace-s", ("api", "shutdown_grace_s"), "time to finish after SIGTERM (30)", float, "SECONDS"),
    Flag("--log-prompts", ("api", "log_prompts"), "write prompts to the log", constant=True),
)
LOG_FLAGS = (
    Flag("--log-level", ("api", "log_level"), "debug, info, warning, error or critical", metavar="LEVEL"),
    Flag("--log-format", ("api", "log_format"), "auto, json or console", metavar="FORMAT"),
)
MODEL_FLAGS = (
    Flag("--name", ("model", "name"), 'what clients say in "model"'),
    Flag("--engine", ("model", "engine"), "auto, native, or another engine"),
    Flag("--precision", ("model", "precision"), "auto, fp32, fp16, bf16, int8 or int4"),
    Flag("--quantization", ("model", "quantization"), "such as int8, awq, gptq", metavar="METHOD"),
    Flag("--max-model-len", ("model", "max_model_len"), "tokens of prompt and answer together", int, "N"),
    Flag("--max-num-seqs", ("model", "max_num_seqs"), "sequences that run at once", int, "N"),
    Flag("--max-num-batched-tokens", ("model", "max_num_batched_tokens"), "tokens computed in one step", int, "N"),
    Flag("--max-batch-size", ("model", "max_batch_size"), "prompts in one batch call", int, "N"),
    Flag("--no-prefix-caching", ("model", "enable_prefix_caching"), "compute every prompt anew", constant=False),
    Flag("--kv-cache-memory", ("model", "kv_cache_memory"), "memory of the KV cache, such as 2GiB", metavar="SIZE"),
    Flag("--gpu-memory-utilization", ("model", "gpu_memory_utilization"), "share of memory (0.9)", float, "SHARE"),
    Flag("--tensor-parallel-size", ("model", "tensor_parallel_size"), "devices that share one model", int, "N"),
    Flag("--runner", ("model", "runner"), "what computes the native engine's steps: auto, or one by name"),
    Flag("--device", ("model", "device"), "auto, cpu, cuda, …"),
    Flag("--tokenizer", ("model", "tokenizer"), "where it is not the model's own", metavar="PATH"),
    Flag("--chat-template", ("model", "chat_template"), "a Jinja template, or the path of one", metavar="TEMPLATE"),
    Flag(
        "--trust-remote-code",
        ("model", "trust_remote_code"),
        "let a hub repository's *.py files come along (native runs none)",
        constant=True,
    ),
    Flag("--no-warmup", ("model", "warmup"), "be ready without a warm-up", constant=False),
)
_ALL = (*API_FLAGS, *LOG_FLAGS, *MODEL_FLAGS)


def add_config_arguments(parser: argparse.ArgumentParser, *, api: bool, model_flag: bool = False) -> None:
    """MODEL (`--model` where the command has another positional), --config and the flags; `api`: the service's too."""
    if model_flag:
        parser.add_argument("--model", metavar="MODEL", help=_MODEL_HELP)
    else:
        parser.add_argument("model", nargs="?", metavar="MODEL", help=_MODEL_HELP)
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML or JSON; flags go before what it says")
    if api:
        _add(parser.add_argument_group("service"), API_FLAGS)
    _add(parser.add_argument_group("model"), MODEL_FLAGS)
    _add(parser.add_argument_group("log"), LOG_FLAGS)


_MODEL_HELP = "hub id, directory, *.gguf file or pypi:<package> (a small chat model where absent)"


def _add(group: argparse._ArgumentGroup, flags: tuple[Flag, ...]) -> None:
    for flag in flags:
        if flag.constant is not None:
            group.add_argument(flag.name, dest=flag.dest, action="store_const", const=flag.constant, help=flag.help)
            continue
        metavar = flag.metavar or flag.path[-1].upper()
        action = "append" if flag.many else "store"
        group.add_argument(flag.name, dest=flag.dest, action=action, type=flag.read, metavar=metavar, help=flag.help)


def load(args: argparse.Namespace) -> LoadedConfig:
    """The effective configuration of a command that serves: flags over the file. Raises `ConfigError`."""
    from llm_inference.config.load import load_config

    return load_config(args.config, overrides_of(args))


def load_model(args: argparse.Namespace) -> tuple[ModelConfig, LoadedConfig]:
    """One model to talk to: MODEL is the name of one in the file, or else replaces the only one there.

    Raises `ConfigError`, also when the file has several models and none was chosen.
    """
    from llm_inference.config.load import load_config
    from llm_inference.errors import ConfigError

    if args.config is not None:
        flags = overrides_of(args, with_model=False)
        loaded = load_config(args.config, [one for one in flags if one.path[0] == "api"])
        models = {name: model for model in loaded.config.models for name in (model.name, *model.aliases)}
        if len(loaded.config.models) > 1:
            if args.model not in models:
                raise ConfigError(f"{args.config} has several models; say which: {', '.join(models)}")
            for_a_model = [one.flag for one in flags if one.path[0] == "model"]
            if for_a_model:
                raise ConfigError(f"{for_a_model[0]}: {args.config} has several models; set it in the file")
            return models[args.model], loaded
        if args.model in models:
            loaded = load_config(args.config, flags)
            return loaded.config.models[0], loaded
    loaded = load(args)
    return loaded.config.models[0], loaded


def overrides_of(args: argparse.Namespace, *, with_model: bool = True) -> list[Override]:
    """The flags that were given, as overrides."""
    from llm_inference.config.load import Override

    overrides = []
    if with_model and args.model is not None:
        overrides.append(Override(("model", "model"), args.model, "MODEL"))
    for flag in _ALL:
        value = getattr(args, flag.dest, None)
        if value is not None:
            overrides.append(Override(flag.path, value, flag.name))
    return overrides
