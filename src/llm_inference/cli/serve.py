"""Serve one or more models over HTTP until told to stop.

Only reads flags; everything else is `llm_inference.serve`.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from llm_inference.cli import options

if TYPE_CHECKING:
    from llm_inference.config.schema import ServerConfig

HELP = "serve models over HTTP"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_config_arguments(parser, api=True)
    parser.add_argument(
        "--on", choices=("ray",), help="run the engines as replicas in a Ray cluster (`ray:` of each model)"
    )


def run(args: argparse.Namespace) -> int:
    config = _read(args)
    from llm_inference import serve

    return serve.run(config, lambda: read_again(args))


def read_again(args: argparse.Namespace) -> ServerConfig:
    """For a reload. Raises `ConfigError`, also for a pipe: whoever opens one that nobody writes to waits for ever."""
    from llm_inference.errors import ConfigError

    if args.config is not None and os.path.exists(args.config) and not os.path.isfile(args.config):
        raise ConfigError(f"{args.config} is no file that can be read again; start the server with one, to reload it")
    return _read(args)


def _read(args: argparse.Namespace) -> ServerConfig:
    config = options.load(args).config
    if args.on == "ray":
        config = config.model_copy(update={"models": tuple(model.on_ray() for model in config.models)})
    return config
